"""The feedback folder: sizes by key, and files that ended processes left."""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ranking.artifacts.log_names import FEEDBACK
from ranking.errors import OutputError
from service.logs.log_folder import LogFolder, UnfinishedFile
from service.logs.rotating_files import BLOCK_BYTES
from tests.service.logs.folders import feedback_folder

OLD = "feedback-20260110T090000Z-0123456789ab"


def append(folder: LogFolder, key: str | None, lines: bytes) -> UnfinishedFile:
    """Append lines to a new file of a key, which stays open."""
    file = folder.open_file(key)
    file.append(lines)
    return file


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_scan_measures_all_files_and_those_of_each_key(tmp_path: Path) -> None:
    (tmp_path / f"{OLD}.jsonl").write_bytes(b"x" * 100)
    (tmp_path / f"{OLD}-shop.jsonl").write_bytes(b"x" * 20)
    (tmp_path / "collector.state").write_bytes(b"x" * 5)
    (tmp_path / "done").mkdir()
    folder = feedback_folder(tmp_path)
    open_files = [append(folder, "shop", b"x" * 3), append(folder, "app", b"x" * 7)]
    usage = folder.scan()
    assert (usage.total, usage.by_key) == (130, {"shop": 23, "app": 7})
    assert abs(usage.oldest_part - datetime.now(UTC).timestamp()) < 60
    for file in open_files:
        file.finish()
    assert folder.scan().oldest_part == math.inf


def test_scan_finishes_files_of_ended_processes_and_leaves_those_of_running_ones(tmp_path: Path) -> None:
    folder = feedback_folder(tmp_path)
    running = append(folder, None, b"running\n")
    (tmp_path / f"{OLD}-a.jsonl.part").write_bytes(b"left\n")
    (tmp_path / f"{OLD}-b.jsonl.part").touch()
    assert folder.scan().oldest_part < math.inf
    assert (tmp_path / f"{OLD}-a.jsonl").read_bytes() == b"left\n"
    assert [name.endswith(".part") for name in names(tmp_path)].count(True) == 1, "the empty file is removed"
    running.append(b"on\n")
    running.finish()
    assert len(list(tmp_path.glob("*.jsonl"))) == 2


@pytest.mark.parametrize("torn", [b"x", b"x" * (BLOCK_BYTES - 1), b"x" * BLOCK_BYTES, b"x" * 3 * BLOCK_BYTES])
def test_scan_removes_the_incomplete_line_of_a_process_that_was_killed_during_a_write(
    tmp_path: Path, torn: bytes
) -> None:
    lines = b"1\n" + b"2" * 10 + b"\n"
    (tmp_path / f"{OLD}-a.jsonl.part").write_bytes(lines + torn)
    (tmp_path / f"{OLD}-b.jsonl.part").write_bytes(torn)
    feedback_folder(tmp_path).scan()
    assert names(tmp_path) == [f"{OLD}-a.jsonl"], "the file without a complete line is removed"
    assert (tmp_path / f"{OLD}-a.jsonl").read_bytes() == lines


def test_scan_keeps_a_young_empty_file_that_may_not_be_locked_yet(tmp_path: Path) -> None:
    folder = feedback_folder(tmp_path)
    (tmp_path / f"{FEEDBACK.new('shop')}.part").touch()
    folder.scan()
    assert len(names(tmp_path)) == 1


def test_scan_survives_names_with_impossible_times_and_files_that_cannot_be_opened(tmp_path: Path) -> None:
    folder = feedback_folder(tmp_path)
    (tmp_path / "feedback-99999999T999999Z-0123456789ab.jsonl.part").write_bytes(b"left\n")
    (tmp_path / f"{OLD}.jsonl.part").mkdir()
    assert folder.scan().oldest_part == datetime(2026, 1, 10, 9, tzinfo=UTC).timestamp()
    assert (tmp_path / "feedback-99999999T999999Z-0123456789ab.jsonl").read_bytes() == b"left\n"


def test_scan_creates_a_removed_folder_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = feedback_folder(tmp_path / "feedback")
    (tmp_path / "feedback").rmdir()
    assert folder.scan().total == 0
    assert (tmp_path / "feedback").is_dir()
    assert f"the feedback folder {tmp_path / 'feedback'} was removed; created it again" in caplog.messages


def test_construction_in_an_impossible_folder_raises_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file: feedback cannot be written"):
        feedback_folder(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_construction_in_a_read_only_folder_raises_output_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="feedback cannot be written"):
        feedback_folder(tmp_path)
