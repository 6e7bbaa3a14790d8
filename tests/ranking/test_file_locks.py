"""Locks of files and folders."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

from ranking.file_locks import FileLock


@pytest.fixture(params=["file", "folder"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "path"
    path.write_text("content") if request.param == "file" else path.mkdir()
    return path


def test_lock_excludes_others_until_it_is_closed(path: Path) -> None:
    with FileLock(path), pytest.raises(BlockingIOError):
        FileLock(path, wait=False)
    FileLock(path, wait=False).close()


def test_lock_is_released_once_at_the_latest_when_it_is_freed(path: Path) -> None:
    FileLock(path)
    lock = FileLock(path, wait=False)
    lock.close()
    with FileLock(path, wait=False):
        lock.close()  # its descriptor may be that of another file now
        with pytest.raises(BlockingIOError):
            FileLock(path, wait=False)


def test_lock_waits_for_another(path: Path) -> None:
    lock, taken = FileLock(path), threading.Event()

    def take() -> None:
        with FileLock(path):
            taken.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert not taken.wait(0.05)
    lock.close()
    thread.join()
    assert taken.is_set()


def test_lock_keeps_the_content_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("content")
    FileLock(file, create=True).close()
    assert file.read_text() == "content"


def test_lock_creates_a_file_only_if_asked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "absent")
    with FileLock(tmp_path / "created", create=True):
        assert (tmp_path / "created").is_file()


def test_failed_lock_closes_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, closed = [], []

    def fail(descriptor: int, _: int) -> None:
        used.append(descriptor)
        raise OSError(errno.ENOLCK, "No locks available")

    def close(descriptor: int) -> None:
        closed.append(descriptor)
        original(descriptor)

    original = os.close
    monkeypatch.setattr(fcntl, "flock", fail)
    monkeypatch.setattr(os, "close", close)
    with pytest.raises(OSError, match="No locks available"):
        FileLock(path)
    assert used
    assert set(used) <= set(closed)
