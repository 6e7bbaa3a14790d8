"""Feedback files: complete lines, rotation, and no loss when a process is killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ranking.errors import OutputError
from service.feedback.files import RotatingJsonlFile

LARGE, LONG = 1 << 30, 3600.0


def suffixes(folder: Path) -> list[str]:
    """Return the suffixes of the files in a folder."""
    return sorted(file.name.partition(".")[2] for file in folder.iterdir())


def test_jsonl_file_is_created_by_the_first_append_and_renamed_by_finish(tmp_path: Path) -> None:
    files = RotatingJsonlFile(tmp_path / "new" / "folder", LARGE, LONG)
    folder = tmp_path / "new" / "folder"
    files.finish()
    assert suffixes(folder) == []
    assert files.seconds_until_due() is None
    files.append(b"1\n")
    files.append(b"2\n3\n")
    assert suffixes(folder) == ["jsonl.part"]
    files.finish()
    assert suffixes(folder) == ["jsonl"]
    assert next(folder.iterdir()).read_bytes() == b"1\n2\n3\n"


def test_jsonl_file_at_max_bytes_is_finished_and_a_new_one_is_opened(tmp_path: Path) -> None:
    files = RotatingJsonlFile(tmp_path, 10, LONG)
    for number in range(7):
        files.append(b"%04d\n" % number)
    assert suffixes(tmp_path) == ["jsonl", "jsonl", "jsonl", "jsonl.part"]
    assert sorted(b"".join(file.read_bytes() for file in tmp_path.iterdir()).split()) == [b"%04d" % n for n in range(7)]


def test_jsonl_file_older_than_max_seconds_is_due(tmp_path: Path) -> None:
    files = RotatingJsonlFile(tmp_path, LARGE, 0.05)
    files.append(b"1\n")
    assert 0 < (files.seconds_until_due() or 0) <= 0.05
    time.sleep(0.06)
    assert files.seconds_until_due() == 0


def test_append_on_a_full_disk_removes_the_partial_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RotatingJsonlFile(tmp_path, LARGE, LONG)
    files.append(b"whole\n")
    with monkeypatch.context() as patch:
        write = os.write
        patch.setattr(os, "write", lambda file, data: write(file, data[:3]))  # as on a full disk
        with pytest.raises(OSError, match="no space left"):
            files.append(b"too long\n")
    files.append(b"again\n")
    files.finish()
    assert next(tmp_path.iterdir()).read_bytes() == b"whole\nagain\n"


def test_jsonl_file_construction_finishes_orphans_and_leaves_locked_files(tmp_path: Path) -> None:
    living = RotatingJsonlFile(tmp_path, LARGE, LONG)
    living.append(b"living\n")
    (tmp_path / "feedback-old.jsonl.part").write_bytes(b"left\n")
    (tmp_path / "feedback-empty.jsonl.part").touch()
    RotatingJsonlFile(tmp_path, LARGE, LONG)
    assert (tmp_path / "feedback-old.jsonl").read_bytes() == b"left\n"
    assert suffixes(tmp_path) == ["jsonl", "jsonl.part", "jsonl.part"]
    living.append(b"on\n")
    living.finish()
    assert suffixes(tmp_path) == ["jsonl", "jsonl", "jsonl.part"]


def test_jsonl_file_in_an_impossible_folder_raises_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file: feedback cannot be written"):
        RotatingJsonlFile(tmp_path / "file", LARGE, LONG)


def append_until_killed(folder: Path, process_index: int, last: Any) -> None:
    """Append three lines at a time and report the number of the last complete append."""
    files = RotatingJsonlFile(folder, 200_000, LONG)
    while True:
        line = {"process": process_index, "number": last.value + 1, "text": "x" * 300}
        files.append((json.dumps(line) + "\n").encode() * 3)
        last.value += 1


def test_appends_that_returned_survive_a_kill_as_complete_lines(tmp_path: Path) -> None:
    folder = tmp_path / "feedback"
    context = multiprocessing.get_context("fork")
    last_numbers = [context.RawValue("q", -1) for _ in range(4)]  # a RawValue has no lock that a kill could leave held
    processes = [
        context.Process(target=append_until_killed, args=(folder, index, last))
        for index, last in enumerate(last_numbers)
    ]
    for process in processes:
        process.start()
    try:
        while min(last.value for last in last_numbers) < 100:
            assert all(process.is_alive() for process in processes)
            time.sleep(0.01)
    finally:
        for process in processes:
            process.kill()
            process.join()
    RotatingJsonlFile(folder, LARGE, LONG)
    lines = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_bytes().splitlines()]
    assert not any(part.stat().st_size for part in folder.glob("*.part"))  # only empty files may remain
    for index, last in enumerate(last_numbers):
        numbers = [line["number"] for line in lines if line["process"] == index]
        assert len(numbers) == 3 * len(set(numbers))  # all lines of an append, or none
        assert set(range(last.value + 1)) <= set(numbers)
