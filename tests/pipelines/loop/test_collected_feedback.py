"""Files of feedback from a Kafka topic."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pipelines.loop.collected_feedback import CollectedFeedback
from pipelines.loop.feedback_files import find_feedback_files
from ranking.errors import OutputError

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def collected(folder: Path, offsets: range, time: datetime = START, topic: str = "t") -> tuple[int, dict[int, int]]:
    """Collect messages of partition 0, each in the second of its offset."""
    feedback = CollectedFeedback(folder, topic)
    for offset in offsets:
        feedback.add(0, offset, time + timedelta(seconds=offset), b"%d\n" % offset)
    files, written = feedback.write()
    return files, dict(written)


def test_messages_of_a_partition_become_one_file(tmp_path: Path) -> None:
    feedback = CollectedFeedback(tmp_path, "t")
    for partition, offset in ((0, 5), (1, 0), (0, 6)):
        feedback.add(partition, offset, START, b"%d %d\n" % (partition, offset))
    assert feedback.is_waiting
    assert feedback.write() == (2, {0: 6, 1: 0})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "feedback-20260301T120000Z-t-0-5-6.jsonl": b"0 5\n0 6\n",
        "feedback-20260301T120000Z-t-1-0-0.jsonl": b"1 0\n",
    }
    assert feedback.write() == (0, {})


def test_messages_that_an_earlier_collection_wrote_are_left_out(tmp_path: Path) -> None:
    assert collected(tmp_path, range(3)) == (1, {0: 2})
    assert collected(tmp_path, range(5)) == (1, {0: 4})
    assert collected(tmp_path, range(5)) == (0, {0: 4}), "the offsets of both files are committed"
    assert collected(tmp_path, range(7)) == (1, {0: 6})
    assert b"".join(path.read_bytes() for path in find_feedback_files(tmp_path)) == b"0\n1\n2\n3\n4\n5\n6\n"


def test_collection_that_ends_among_repeated_messages_commits_none_of_them(tmp_path: Path) -> None:
    collected(tmp_path, range(5))
    assert collected(tmp_path, range(3)) == (0, {})
    assert collected(tmp_path, range(8)) == (1, {0: 7})
    assert b"".join(path.read_bytes() for path in find_feedback_files(tmp_path)) == b"0\n1\n2\n3\n4\n5\n6\n7\n"


def test_removed_folder_is_an_error_in_one_line(tmp_path: Path) -> None:
    feedback = CollectedFeedback(tmp_path / "removed", "t")
    with pytest.raises(OutputError, match="removed: cannot be read"):
        feedback.add(0, 0, START, b"0\n")


def test_messages_of_a_later_topic_of_the_same_name_are_kept(tmp_path: Path) -> None:
    collected(tmp_path, range(3))
    assert collected(tmp_path, range(3), START + timedelta(days=1)) == (1, {0: 2})
    assert len(find_feedback_files(tmp_path)) == 2


def test_topic_whose_name_ends_like_another_is_separate(tmp_path: Path) -> None:
    collected(tmp_path, range(3), topic="shop-t")
    other = CollectedFeedback(tmp_path, "t")
    assert not other.is_used
    assert collected(tmp_path, range(3)) == (1, {0: 2})


def test_topic_with_a_mark_is_used(tmp_path: Path) -> None:
    CollectedFeedback(tmp_path, "t").mark.set(START)
    assert CollectedFeedback(tmp_path, "t").is_used
