"""Temporary folders of killed processes are removed, and no others."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ranking.temporary_folders import FolderLock, new_path, temporary_folder
from tests.support.waiting import TIMEOUT_SECONDS

NAME = f"ranker-join-{'0' * 16}"

HOLD = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from ranking.temporary_folders import temporary_folder
with temporary_folder("join") as folder:
    (folder / "spill").mkdir()
    (folder / "spill" / "file").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@contextmanager
def process_with_folder(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start a process that uses a temporary folder, until its standard input ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(parent)], text=True, **pipes) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().rstrip())


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of this process."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_folder_of_a_killed_process_is_removed_at_the_next_start_and_that_of_a_living_one_stays(parent: Path) -> None:
    with process_with_folder(parent) as (killed, abandoned), process_with_folder(parent) as (_, used):
        assert abandoned.is_dir()
        killed.kill()
        killed.wait()
        with temporary_folder("counters") as folder:
            assert sorted(parent.iterdir()) == sorted([folder, used])
            assert (used / "spill" / "file").read_bytes() == b"x"
    assert not list(parent.iterdir())


def test_folder_is_removed_at_the_end_and_after_an_error(parent: Path) -> None:
    def use() -> None:
        with temporary_folder("join") as folder:
            (folder / "file").touch()
            assert folder.stat().st_mode & 0o777 == 0o700
            raise InterruptedError

    with pytest.raises(InterruptedError):
        use()
    assert not list(parent.iterdir())


def test_links_and_folders_with_other_names_stay(parent: Path) -> None:
    data = parent / "data"
    names = ["ranker-join-report", "ranker-join-abcdefgh", f"my-{NAME}", f"{NAME}.old", NAME.upper()]
    for folder in (data, *(parent / name for name in names)):
        folder.mkdir()
        (folder / "file").touch()
    (parent / NAME).symlink_to(data)
    (parent / NAME.replace("join", "index")).touch()
    before = sorted(parent.rglob("*"))
    new_path("join", parent)
    assert sorted(parent.rglob("*")) == before


def test_folder_of_another_user_stays(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (parent / NAME).mkdir()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    new_path("join", parent)
    assert (parent / NAME).is_dir()


def test_folder_stays_while_the_last_of_its_processes_uses_it(parent: Path) -> None:
    first, second = FolderLock(parent / NAME), FolderLock(parent / NAME)
    first.close()
    new_path("join", parent)
    assert (parent / NAME).is_dir()
    second.close()
    new_path("join", parent)
    assert not (parent / NAME).exists()


def test_folder_that_is_removed_before_it_is_locked_is_created_again(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, removed = fcntl.flock, []

    def remove_first(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(parent / NAME)
            removed[0].rmdir()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    lock = FolderLock(parent / NAME)
    new_path("join", parent)
    assert (parent / NAME).is_dir()
    lock.close()


def test_folder_that_is_created_again_while_its_removal_begins_is_kept(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has removed the folder, before its owner locked it, and the owner has created it again."""
    flock, kept = fcntl.flock, parent / NAME
    kept.mkdir()

    def create_again_first(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        kept.rename(parent / "removed")  # not deleted, so that the new folder has another inode
        kept.mkdir()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", create_again_first)
    new_path("join", parent)
    assert fcntl.flock is flock
    assert kept.is_dir()


def test_filesystem_without_locks_keeps_all_folders(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    (parent / NAME).mkdir()
    with temporary_folder("join") as folder:
        assert folder.is_dir()
    assert list(parent.iterdir()) == [parent / NAME]


def test_many_processes_that_start_at_once_keep_their_folders(parent: Path) -> None:
    def use_often() -> None:
        for _ in range(100):
            with temporary_folder("join") as folder:
                (folder / "file").touch()  # fails if another thread has removed the folder

    errors: list[threading.ExceptHookArgs] = []
    hook, threading.excepthook = threading.excepthook, errors.append
    threads = [threading.Thread(target=use_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    threading.excepthook = hook
    assert not errors
    assert not list(parent.iterdir())


def test_missing_parent_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FolderLock(new_path("join", tmp_path / "missing"))
