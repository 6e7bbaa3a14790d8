"""Files of feedback: whole lines, finished files, and nothing lost when a process is killed."""

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


def names(folder: Path) -> list[str]:
    """Suffixes of what is there."""
    return sorted(file.name.partition(".")[2] for file in folder.iterdir())


def test_a_file_is_made_with_the_first_line_and_named_when_it_is_finished(tmp_path: Path) -> None:
    files = RotatingJsonlFile(tmp_path / "new" / "folder", LARGE, LONG)
    folder = tmp_path / "new" / "folder"
    files.finish()
    assert names(folder) == []
    assert files.wait() is None
    files.append(b"1\n")
    files.append(b"2\n3\n")
    assert names(folder) == ["jsonl.part"]
    files.finish()
    assert names(folder) == ["jsonl"]
    assert next(folder.iterdir()).read_bytes() == b"1\n2\n3\n"


def test_a_large_file_is_finished_and_the_next_one_begun(tmp_path: Path) -> None:
    files = RotatingJsonlFile(tmp_path, 10, LONG)
    for number in range(7):
        files.append(b"%04d\n" % number)
    assert names(tmp_path) == ["jsonl", "jsonl", "jsonl", "jsonl.part"]
    assert sorted(b"".join(file.read_bytes() for file in tmp_path.iterdir()).split()) == [b"%04d" % n for n in range(7)]


def test_an_old_file_is_due(tmp_path: Path) -> None:
    files = RotatingJsonlFile(tmp_path, LARGE, 0.05)
    files.append(b"1\n")
    assert 0 < (files.wait() or 0) <= 0.05
    time.sleep(0.06)
    assert files.wait() == 0


def test_half_a_line_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_a_killed_process_left_is_finished_by_the_next_and_a_living_ones_is_not(tmp_path: Path) -> None:
    living = RotatingJsonlFile(tmp_path, LARGE, LONG)
    living.append(b"living\n")
    (tmp_path / "feedback-old.jsonl.part").write_bytes(b"left\n")
    (tmp_path / "feedback-empty.jsonl.part").touch()
    RotatingJsonlFile(tmp_path, LARGE, LONG)
    assert (tmp_path / "feedback-old.jsonl").read_bytes() == b"left\n"
    assert names(tmp_path) == ["jsonl", "jsonl.part", "jsonl.part"]
    living.append(b"on\n")
    living.finish()
    assert names(tmp_path) == ["jsonl", "jsonl", "jsonl.part"]


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file: feedback cannot be written"):
        RotatingJsonlFile(tmp_path / "file", LARGE, LONG)


def write_for_ever(folder: Path, by: int, last: Any) -> None:
    """Writes three lines at a time, and says then which were written."""
    files = RotatingJsonlFile(folder, 200_000, LONG)
    while True:
        line = {"by": by, "number": last.value + 1, "text": "x" * 300}
        files.append((json.dumps(line) + "\n").encode() * 3)
        last.value += 1


def test_killed_processes_leave_whole_lines_and_all_that_they_had_said_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "feedback"
    forking = multiprocessing.get_context("fork")
    said = [forking.RawValue("q", -1) for _ in range(4)]  # whose lock no killed process holds
    processes = [forking.Process(target=write_for_ever, args=(folder, by, last)) for by, last in enumerate(said)]
    for process in processes:
        process.start()
    try:
        while min(last.value for last in said) < 100:
            assert all(process.is_alive() for process in processes)
            time.sleep(0.01)
    finally:
        for process in processes:
            process.kill()
            process.join()
    RotatingJsonlFile(folder, LARGE, LONG)
    lines = [json.loads(line) for file in folder.glob("*.jsonl") for line in file.read_bytes().splitlines()]
    assert not any(part.stat().st_size for part in folder.glob("*.part"))  # one may have been made, and no more
    for by, last in enumerate(said):
        numbers = [line["number"] for line in lines if line["by"] == by]
        assert len(numbers) == 3 * len(set(numbers))  # of a write all lines or none
        assert set(range(last.value + 1)) <= set(numbers)
