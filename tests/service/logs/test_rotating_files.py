"""Feedback files: complete lines, rotation, and no loss when a process is killed."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from service.logs.rotating_files import RotatingFiles
from service.telemetry.metrics import Metrics
from tests.service.logs.folders import feedback_folder
from tests.support.metrics import samples
from tests.support.waiting import wait_until

LARGE, LONG = 1 << 30, 3600.0


def rotating_files(
    folder: Path, max_bytes: int = LARGE, max_seconds: float = LONG, metrics: Metrics | None = None
) -> RotatingFiles:
    """Return rotating files in a folder, which is created if it does not exist."""
    failures = (metrics or Metrics()).feedback_failures
    return RotatingFiles(feedback_folder(folder), max_bytes, max_seconds, failures)


def finish(files: RotatingFiles) -> None:
    files.maintain(closing=True)


def suffixes(folder: Path) -> list[str]:
    """Return the suffixes of the files in a folder."""
    return sorted(file.name.partition(".")[2] for file in folder.iterdir())


def test_rotating_files_is_created_by_the_first_append_and_renamed_by_finish(tmp_path: Path) -> None:
    files = rotating_files(tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    finish(files)
    assert suffixes(folder) == []
    assert files.maintain() == math.inf
    files.write(b"1\n")
    files.write(b"2\n3\n")
    assert suffixes(folder) == ["jsonl.part"]
    finish(files)
    assert suffixes(folder) == ["jsonl"]
    assert next(folder.iterdir()).read_bytes() == b"1\n2\n3\n"


def test_rotating_files_at_max_bytes_is_finished_and_a_new_one_is_opened(tmp_path: Path) -> None:
    files = rotating_files(tmp_path, 10)
    for number in range(7):
        files.write(b"%04d\n" % number)
    assert suffixes(tmp_path) == ["jsonl", "jsonl", "jsonl", "jsonl.part"]
    assert sorted(b"".join(file.read_bytes() for file in tmp_path.iterdir()).split()) == [b"%04d" % n for n in range(7)]


def test_rotating_files_older_than_max_seconds_finish(tmp_path: Path) -> None:
    young, old = rotating_files(tmp_path / "young", max_seconds=600), rotating_files(tmp_path / "old", max_seconds=0.01)
    young.write(b"1\n")
    assert 0 < young.maintain() <= 600
    old.write(b"1\n")
    time.sleep(0.02)
    assert old.maintain() == math.inf
    assert suffixes(tmp_path / "old") == ["jsonl"]


def test_append_on_a_full_disk_removes_the_partial_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = rotating_files(tmp_path)
    files.write(b"whole\n")
    with monkeypatch.context() as patch:
        write, room = os.write, [3]

        def write_to_full_disk(file: int, data: bytes) -> int:
            return write(file, data[: room.pop()]) if room else 0

        patch.setattr(os, "write", write_to_full_disk)
        with pytest.raises(OSError, match="No space left"):
            files.write(b"too long\n")
    files.write(b"again\n")
    finish(files)
    assert next(tmp_path.iterdir()).read_bytes() == b"whole\nagain\n"


def test_finish_after_a_failed_first_write_leaves_no_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise OSError(28, "no space left on device")

    files = rotating_files(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        with pytest.raises(OSError, match="no space left"):
            files.write(b"lost\n")
    finish(files)
    assert not list(tmp_path.iterdir())
    files.write(b"kept\n")
    finish(files)
    assert next(tmp_path.iterdir()).read_bytes() == b"kept\n"


def test_append_after_the_file_was_deleted_writes_a_new_file_and_logs_the_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, metrics = tmp_path / "feedback", Metrics()
    files = rotating_files(folder, metrics=metrics)
    files.write(b"lost\n")
    (lost,) = folder.iterdir()
    lost.unlink()
    files.write(b"kept\n")
    finish(files)
    assert [file.read_bytes() for file in folder.iterdir()] == [b"kept\n"]
    assert f"{lost} was deleted while it was written, with 5 bytes of accepted feedback" in caplog.messages
    assert samples(metrics.exposition().decode())["ranker_feedback_failures_total,operation=lost"] == 1


def test_append_after_the_folder_was_removed_creates_it_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "deep" / "feedback"
    files = rotating_files(folder)
    files.write(b"lost\n")
    shutil.rmtree(tmp_path / "deep")
    files.write(b"kept\n")
    finish(files)
    assert [file.read_bytes() for file in folder.iterdir()] == [b"kept\n"]
    assert any("was deleted while it was written" in message for message in caplog.messages)
    assert f"the feedback folder {folder} was removed; created it again" in caplog.messages


def test_append_after_the_folder_was_renamed_keeps_both_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "feedback"
    files = rotating_files(folder)
    files.write(b"1\n")
    folder.rename(tmp_path / "moved")
    folder.mkdir()
    files.write(b"2\n")
    finish(files)
    assert [file.read_bytes() for file in folder.iterdir()] == [b"2\n"]
    assert any("was moved or unmounted while it was written" in message for message in caplog.messages)
    feedback_folder(tmp_path / "moved").scan()  # finishes the file, whose lock was released
    assert [(file.suffix, file.read_bytes()) for file in (tmp_path / "moved").iterdir()] == [(".jsonl", b"1\n")]


def test_append_to_a_file_that_is_removed_during_the_write_raises_and_the_next_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = rotating_files(tmp_path)
    files.write(b"1\n")
    write = os.write

    def remove_and_write(file: int, data: bytes) -> int:
        for path in tmp_path.iterdir():
            path.unlink()
        return write(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", remove_and_write)
        with pytest.raises(OSError, match="removed while it was written"):
            files.write(b"2\n")
    files.write(b"3\n")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"3\n"]


def test_append_to_another_filesystem_in_place_of_the_folder_raises(tmp_path: Path) -> None:
    other_device = Path("/dev/shm")
    if not other_device.is_dir() or other_device.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("/dev/shm is not a filesystem of its own")
    mounted, link = tmp_path / "mounted", tmp_path / "feedback"
    mounted.mkdir()
    link.symlink_to(mounted)
    files = rotating_files(link)
    files.write(b"1\n")
    link.unlink()  # as if the volume were unmounted, and its mount point belonged to another filesystem
    link.symlink_to(other_device)
    for _ in range(2):
        with pytest.raises(OSError, match="is on another filesystem than at the start"):
            files.write(b"2\n")
    link.unlink()
    link.symlink_to(mounted)
    files.write(b"3\n")
    assert sorted(file.read_bytes() for file in mounted.iterdir()) == [b"1\n", b"3\n"]
    assert not list(other_device.glob("feedback-*"))


def test_finish_that_fails_keeps_the_lines_for_the_next_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    files = rotating_files(tmp_path, 5, metrics=metrics)

    def fail(_: int) -> None:
        raise OSError(5, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        files.write(b"lines\n")  # accepted: the lines are in the file
    assert suffixes(tmp_path) == ["jsonl.part"]
    assert samples(metrics.exposition().decode())["ranker_feedback_failures_total,operation=finish"] == 1
    feedback_folder(tmp_path).scan()
    assert [(file.suffix, file.read_bytes()) for file in tmp_path.iterdir()] == [(".jsonl", b"lines\n")]


def append_until_killed(folder: Path, process_index: int, last: Any) -> None:
    """Append three lines at a time and report the number of the last complete append."""
    files = rotating_files(folder, 200_000)
    while True:
        line = {"process": process_index, "number": last.value + 1, "text": "x" * 300}
        files.write((json.dumps(line) + "\n").encode() * 3)
        last.value += 1


def test_appends_that_returned_survive_a_kill_as_complete_lines(tmp_path: Path) -> None:
    folder = tmp_path / "feedback"
    context = multiprocessing.get_context("spawn")
    last_numbers = [context.RawValue("q", -1) for _ in range(3)]  # a RawValue has no lock that a kill could leave held
    processes = [
        context.Process(target=append_until_killed, args=(folder, index, last), daemon=True)
        for index, last in enumerate(last_numbers)
    ]

    def all_have_appended() -> bool:
        assert all(process.is_alive() for process in processes)
        return all(last.value >= 100 for last in last_numbers)

    for process in processes:
        process.start()
    try:
        wait_until(all_have_appended, "each process has appended a hundred times")
    finally:
        for process in processes:
            process.kill()
            process.join()
    feedback_folder(folder).scan()
    lines = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_bytes().splitlines()]
    assert not any(part.stat().st_size for part in folder.glob("*.part"))  # only empty files may remain
    for index, last in enumerate(last_numbers):
        copies = Counter(line["number"] for line in lines if line["process"] == index)
        assert all(copies.pop(number) == 3 for number in range(last.value + 1))
        assert list(copies) in ([], [last.value + 1])  # of the append that the kill interrupted
