"""Copies of files in memory: unaffected by the file, sealed, and freed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from ranking.ids.npy import open_array
from service.models import sealed_copy
from service.models.sealed_copy import copy_file
from tests.support.open_files import open_files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(bytes(range(256)) * 100)
    return tmp_path / "file"


def copies_of(file: Path) -> list[Path]:
    """Return the paths in ``/proc`` of this process' open copies of a file; each map has its own descriptor."""
    return open_files(f"/memfd:ranker-{file.stat().st_ino:x}-{file.name}")


@pytest.mark.parametrize("size", [0, 1, 5_000])
def test_copy_is_unaffected_by_truncation_and_overwriting(
    file: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed_copy, "CHUNK_BYTES", 1_000)
    expected = file.read_bytes()
    content = copy_file(file)
    os.truncate(file, size)
    assert content[:] == expected
    file.write_bytes(b"x" * len(expected))
    assert content[:] == expected


def test_copy_of_an_array_is_freed_with_the_array(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(1000))
    array = open_array(tmp_path / "a.npy", np.int64, copy_file)
    os.truncate(tmp_path / "a.npy", 0)
    assert array.tolist() == list(range(1000))
    assert len(copies_of(tmp_path / "a.npy")) == 1
    del array
    assert (copies_of(tmp_path / "a.npy"), open_files(tmp_path)) == ([], [])


def test_copy_cannot_be_changed(file: Path) -> None:
    content = copy_file(file)
    (path,) = copies_of(file)
    descriptor = os.open(path, os.O_RDWR)
    try:
        for change in (lambda: os.write(descriptor, b"x"), lambda: os.ftruncate(descriptor, 1)):
            with pytest.raises(PermissionError):
                change()
    finally:
        os.close(descriptor)
    assert content[:4] == bytes(range(4))


def test_pipe_and_empty_file_are_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe"):
        copy_file(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty"):
        copy_file(tmp_path / "empty")
    assert (copies_of(tmp_path / "empty"), open_files(tmp_path)) == ([], [])
