"""The mark that says until when collected feedback is complete."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipelines.loop.feedback_files import oldest_unfinished
from pipelines.loop.feedback_mark import FeedbackMark
from ranking.errors import OutputError

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_mark_advances_and_never_goes_back(tmp_path: Path) -> None:
    mark = FeedbackMark(tmp_path, "t")
    assert not mark.exists()
    mark.set(START)
    assert oldest_unfinished(tmp_path) == START
    mark.set(START + timedelta(minutes=1))
    mark.set(START)
    assert names(tmp_path) == ["feedback-20260301T120100Z-t.jsonl.part"]
    assert FeedbackMark(tmp_path, "t").exists()


def test_two_marks_of_a_process_that_ended_count_as_the_earlier_until_the_next(tmp_path: Path) -> None:
    for second in (0, 30):
        (tmp_path / f"feedback-202603{1:02d}T1200{second:02d}Z-t.jsonl.part").touch()
    assert oldest_unfinished(tmp_path) == START
    FeedbackMark(tmp_path, "t").set(START + timedelta(seconds=10))
    assert names(tmp_path) == ["feedback-20260301T120030Z-t.jsonl.part"]


def test_mark_of_a_source_whose_name_ends_like_another_is_separate(tmp_path: Path) -> None:
    FeedbackMark(tmp_path, "shop-t").set(START)
    other = FeedbackMark(tmp_path, "t")
    assert not other.exists()
    other.set(START + timedelta(hours=1))
    assert oldest_unfinished(tmp_path) == START


def test_mark_in_a_removed_folder_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="removed: cannot be read"):
        FeedbackMark(tmp_path / "removed", "t").set(START)
