"""Verification of the files of a folder."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ranking.artifacts.checksums import CHECKSUM_FILE, verify_files, write_checksums
from ranking.errors import BundleError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "inner" / "b ü").write_bytes(b"")
    write_checksums(tmp_path)
    return tmp_path


def test_checksums_verify_here_and_with_sha256sum(folder: Path) -> None:
    verify_files(folder)
    subprocess.run(["sha256sum", "--check", "--strict", CHECKSUM_FILE], cwd=folder, check=True, capture_output=True)
    assert [line[66:] for line in (folder / CHECKSUM_FILE).read_text().splitlines()] == ["a", "inner/b ü"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: (folder / "a").write_bytes(b"two"), "a was altered"),
        (lambda folder: (folder / "a").unlink(), "a is missing"),
        (lambda folder: (folder / "inner" / "c").touch(), "inner/c is not listed in SHA256SUMS"),
        (lambda folder: (folder / "c").symlink_to("a"), "c is a link"),
        (lambda folder: (folder / CHECKSUM_FILE).write_text("x\n"), "SHA256SUMS is damaged"),
        (lambda folder: (folder / CHECKSUM_FILE).unlink(), "it has no SHA256SUMS"),
    ],
)
def test_verify_files_names_the_invalid_file(folder: Path, change: Callable[[Path], object], reason: str) -> None:
    change(folder)
    with pytest.raises(BundleError, match=reason):
        verify_files(folder)
