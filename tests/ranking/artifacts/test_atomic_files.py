"""Atomic folders, and checks of output paths before any work is done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ranking.artifacts.atomic_files import (
    atomic_directory,
    check_creatable,
    check_empty,
    check_folder,
    check_writable,
    remove_drafts,
    replaced_file,
)
from ranking.errors import OutputError

Check = Callable[[Path], object]


def message(check: Check, path: Path) -> str:
    with pytest.raises(OutputError) as caught:
        check(path)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.touch()
    return file


@pytest.fixture
def _no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # The tests may run as root.


@pytest.mark.parametrize("check", [check_folder, check_empty, check_creatable, check_writable])
@pytest.mark.parametrize("below", ["a", "a/b"])
def test_check_path_below_a_file_is_rejected(check: Check, below: str, file: Path) -> None:
    assert message(check, file / below) == f"{file} is a file, not a folder: name another path"


@pytest.mark.parametrize("check", [check_empty, check_creatable])
def test_check_path_that_is_not_empty_is_rejected(check: Check, file: Path) -> None:
    for path in (file, file.parent):
        assert message(check, path) == f"{path} exists and is never overwritten: name another folder"


@pytest.mark.parametrize("check", [check_empty, check_creatable])
def test_check_new_or_empty_folder_is_accepted(check: Check, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new", "new/in/new"):
        check(tmp_path / name)


def test_check_writable_accepts_new_and_existing_files(file: Path) -> None:
    for name in ("file", "new"):
        check_writable(file.with_name(name))


def test_check_writable_folder_is_rejected(tmp_path: Path) -> None:
    assert message(check_writable, tmp_path) == f"{tmp_path}: cannot be written (it is a folder); name a file in it"


def test_check_writable_without_parent_folder_is_rejected(tmp_path: Path) -> None:
    text = message(check_writable, tmp_path / "new" / "file")
    assert text == f"{tmp_path / 'new' / 'file'}: cannot be written (there is no folder {tmp_path / 'new'})"


@pytest.mark.usefixtures("_no_permission")
@pytest.mark.parametrize("check", [check_creatable, check_writable])
def test_check_without_permission_is_rejected(check: Check, tmp_path: Path) -> None:
    text = message(check, tmp_path / "new")
    assert text.startswith(f"{tmp_path / 'new'}: cannot be written (no permission to write in {tmp_path})")


def test_atomic_directory_is_hidden_until_it_is_complete(tmp_path: Path) -> None:
    with atomic_directory(tmp_path / "new") as draft:
        (draft / "file").write_text("x")
        assert not (tmp_path / "new").exists()
        assert draft.name.startswith(".")
    assert (tmp_path / "new" / "file").read_text() == "x"
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_atomic_directory_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> None:
        with atomic_directory(tmp_path / "new") as draft:
            (draft / "folder").mkdir()
            (draft / "folder" / "file").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_drafts_of_ended_processes_are_removed_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / ".file.0123456789abcdef.draft").write_text("left by a process that was killed")
    (tmp_path / ".file.draft").write_text("of another kind")
    with replaced_file(tmp_path / "file") as stream:
        stream.write(b"new")
        remove_drafts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".file.draft", "file"]
    assert (tmp_path / "file").read_text() == "new"
