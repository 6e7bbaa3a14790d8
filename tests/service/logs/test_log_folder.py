"""The folder of the served log: its size, its retention, and what ended processes left."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ranking.artifacts.log_names import SERVED
from ranking.errors import OutputError
from tests.service.logs.folders import served_folder


def file_name(age: timedelta, suffix: str = ".parquet") -> str:
    return f"{SERVED.start(datetime.now(UTC) - age)}-0123456789ab{suffix}"


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_write_creates_a_complete_file_with_a_final_name(tmp_path: Path) -> None:
    path = served_folder(tmp_path).write(memoryview(b"content"))
    assert path.read_bytes() == b"content"
    assert names(tmp_path) == [path.name]
    name = SERVED.parse(path.name)
    assert name is not None
    assert name.finished


def test_mount_point_of_an_unmounted_volume_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = served_folder(tmp_path / "served")
    monkeypatch.setattr(folder, "_device", -1)
    with pytest.raises(OSError, match="is on another filesystem than at the start"):
        folder.scan()
    assert folder.path.is_dir()
    folder.path.rmdir()
    with pytest.raises(OSError, match="is on another filesystem than at the start"):
        folder.write(memoryview(b"content"))
    assert not folder.path.exists()  # what the call had created is removed


def test_write_continues_after_partial_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write: Callable[[int, memoryview], int] = os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:3]))
    assert served_folder(tmp_path).write(memoryview(b"0123456789")).read_bytes() == b"0123456789"


@pytest.mark.parametrize("operation", ["write", "fsync"])
def test_write_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    folder = served_folder(tmp_path)
    monkeypatch.setattr(os, operation, fail)
    with pytest.raises(OSError, match="no space"):
        folder.write(memoryview(b"content"))
    assert names(tmp_path) == []


def test_write_on_a_filesystem_without_locks_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="no locks"):
        served_folder(tmp_path).write(memoryview(b"content"))
    assert names(tmp_path) == []


@pytest.mark.parametrize("removed", ["file", "folder", "folder, which is created again"])
def test_removal_during_a_write_is_a_stale_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: str) -> None:
    def remove(_: int) -> None:
        (part,) = folder.path.iterdir()
        part.unlink()
        if removed != "file":
            folder.path.rmdir()
        if "again" in removed:
            folder.path.mkdir()

    folder = served_folder(tmp_path / "log")
    monkeypatch.setattr(os, "fsync", remove)
    with pytest.raises(OSError, match="was removed while it was written") as caught:
        folder.write(memoryview(b"content"))
    assert caught.value.errno == errno.ESTALE


def test_scan_measures_the_files_of_the_log_only(tmp_path: Path) -> None:
    folder = served_folder(tmp_path)
    folder.write(memoryview(b"x" * 10))
    folder.write(memoryview(b"x" * 5))
    (tmp_path / "other.parquet").write_bytes(b"x" * 100)
    (tmp_path / "subfolder").mkdir()
    assert folder.scan().total == 15


def test_scan_deletes_expired_files(tmp_path: Path) -> None:
    expired, kept = file_name(timedelta(days=2, seconds=5)), file_name(timedelta(days=2, seconds=-60))
    (tmp_path / expired).write_bytes(b"old")
    (tmp_path / kept).write_bytes(b"new!")
    assert served_folder(tmp_path, 2.0).scan().total == 4
    assert names(tmp_path) == [kept]


def test_scan_removes_torn_files_of_ended_processes_and_keeps_those_of_running_ones(tmp_path: Path) -> None:
    folder = served_folder(tmp_path)
    torn, young = file_name(timedelta(minutes=5), ".parquet.part"), file_name(timedelta(), ".parquet.part")
    (tmp_path / torn).write_bytes(b"torn")
    (tmp_path / young).write_bytes(b"not locked yet")
    running = tmp_path / torn.replace("-0123", "-3210")  # not in the time
    with running.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        folder.scan()
        assert names(tmp_path) == sorted([young, running.name])
    folder.scan()
    assert names(tmp_path) == [young]


def test_scan_survives_names_with_impossible_times(tmp_path: Path) -> None:
    (tmp_path / "served-99999999T999999Z-0123456789ab.parquet").write_bytes(b"kept")
    assert served_folder(tmp_path).scan().total == 4


def test_removed_folder_is_created_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = served_folder(tmp_path / "served")
    (tmp_path / "served").rmdir()
    assert folder.write(memoryview(b"content")).exists()
    assert f"the served log folder {tmp_path / 'served'} was removed; created it again" in caplog.messages


def test_construction_in_an_impossible_folder_raises_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file: served log cannot be written"):
        served_folder(tmp_path / "file")


def test_files_of_one_second_have_different_names(tmp_path: Path) -> None:
    folder, start = served_folder(tmp_path), time.monotonic()
    count = 0
    while time.monotonic() < start + 0.05:
        folder.write(memoryview(b"x"))
        count += 1
    assert len(names(tmp_path)) == count
