"""Places that cannot be written are told before any work is done."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ranking.artifacts.atomic_files import check_creatable, check_empty, check_folder, check_writable
from ranking.errors import OutputError

Require = Callable[[Path], object]


def message(require: Require, path: Path) -> str:
    with pytest.raises(OutputError) as caught:
        require(path)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.touch()
    return file


@pytest.fixture
def _no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere


@pytest.mark.parametrize("require", [check_folder, check_empty, check_creatable, check_writable])
@pytest.mark.parametrize("below", ["a", "a/b"])
def test_a_file_is_no_folder(require: Require, below: str, file: Path) -> None:
    assert message(require, file / below) == f"{file} is a file, not a folder: name another path"


@pytest.mark.parametrize("require", [check_empty, check_creatable])
def test_what_holds_something_is_not_overwritten(require: Require, file: Path) -> None:
    for there in (file, file.parent):
        assert message(require, there) == f"{there} exists and is never overwritten: name another folder"


@pytest.mark.parametrize("require", [check_empty, check_creatable])
def test_a_new_or_an_empty_folder_is_free(require: Require, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "new", "new/in/new"):
        require(tmp_path / name)


def test_a_file_may_be_new_or_replaced(file: Path) -> None:
    for name in ("file", "new"):
        check_writable(file.with_name(name))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert message(check_writable, tmp_path) == f"{tmp_path}: cannot be written (it is a folder); name a file in it"


def test_a_file_needs_a_folder(tmp_path: Path) -> None:
    text = message(check_writable, tmp_path / "new" / "file")
    assert text == f"{tmp_path / 'new' / 'file'}: cannot be written (there is no folder {tmp_path / 'new'})"


@pytest.mark.usefixtures("_no_permission")
@pytest.mark.parametrize("require", [check_creatable, check_writable])
def test_without_permission_nothing_is_written(require: Require, tmp_path: Path) -> None:
    text = message(require, tmp_path / "new")
    assert text.startswith(f"{tmp_path / 'new'}: cannot be written (no permission to write in {tmp_path})")
