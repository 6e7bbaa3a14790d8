"""Feedback of a Kafka topic in a folder: messages are merged to files, whose names tell which."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from pipelines.loop.feedback_mark import FeedbackMark, files_of
from ranking.artifacts.atomic_files import replace_file
from ranking.artifacts.log_names import FEEDBACK

MAX_BYTES = 64 * 1024 * 1024
"""Size of the messages that wait for the next files."""
NONE = -math.inf
"""Last offset in files of an earlier collection, when there are none or all its messages were repeated."""


@dataclass
class _Batch:
    """Messages of one partition that become a file.

    Attributes:
        created: time of the first message.
        first: its offset.
        last: offset of the last message.
        contents: their lines.
    """

    created: datetime
    first: int
    last: int
    contents: list[bytes] = field(default_factory=list)


class CollectedFeedback:
    """The files of a topic.

    The name of a file, ``feedback-TIME-TOPIC-PARTITION-FIRST-LAST.jsonl``, has the offsets of its messages. If a
    collection ends after it wrote a file, and before it committed the offsets, the next one recognizes the file.

    Args:
        folder: the folder.
        topic: name of the topic.

    Attributes:
        mark: until when the feedback of the topic is complete.
    """

    def __init__(self, folder: Path, topic: str) -> None:
        self._folder, self._topic = folder, topic
        self._batches: dict[int, _Batch] = {}
        self._repeated_until: dict[int, float] = {}  # by partition, last offset in files of an earlier collection
        self._bytes = 0
        self.mark = FeedbackMark(folder, topic)

    @property
    def is_used(self) -> bool:
        """Whether the topic has had messages."""
        return bool(self._repeated_until) or self.mark.exists()

    @property
    def is_waiting(self) -> bool:
        """Whether messages wait for files."""
        return bool(self._batches)

    @property
    def is_full(self) -> bool:
        """Whether enough messages wait for files."""
        return self._bytes >= MAX_BYTES

    def add(self, partition: int, offset: int, time: datetime, content: bytes) -> None:
        """Add a message; one that an earlier collection wrote is left out.

        Raises:
            OutputError: the folder cannot be read.
        """
        batch = self._batches.setdefault(partition, _Batch(time, offset, offset))
        batch.last = offset
        if not batch.contents and self._repeated_until.get(partition, -1) < offset:
            batch.created, batch.first = time, offset
            if self._repeated_until.get(partition) != NONE:
                self._repeated_until[partition] = self._find_last(partition, offset, time)
        if offset > self._repeated_until[partition]:
            batch.contents.append(content)
            self._bytes += len(content)

    def write(self) -> tuple[int, Mapping[int, int]]:
        """Write a file for each partition.

        Returns:
            The number of files, and the last offset of each partition whose messages are in files. A file of an earlier
            collection counts when all its messages were repeated.

        Raises:
            OutputError: a file cannot be written.
        """
        files, offsets = 0, {}
        for partition, batch in self._batches.items():
            if batch.contents:
                name = f"{self._start(partition, batch.first, batch.created)}-{batch.last}{FEEDBACK.suffix}"
                replace_file(self._folder / name, batch.contents, 0o640)
                files += 1
            if batch.contents or batch.last >= self._repeated_until[partition]:
                offsets[partition] = batch.last
        self._batches, self._bytes = {}, 0
        return files, offsets

    def _start(self, partition: int, first: int, created: datetime) -> str:
        return f"{FEEDBACK.start(created)}-{self._topic}-{partition}-{first}"

    def _find_last(self, partition: int, offset: int, time: datetime) -> float:
        """Return the last offset of a file that begins with a message; ``NONE`` if there is none.

        The time distinguishes the topic from an earlier one of the same name.
        """
        pattern = re.compile(rf"{re.escape(self._start(partition, offset, time))}-(\d+){re.escape(FEEDBACK.suffix)}")
        names = [pattern.fullmatch(path.name) for path in files_of(self._folder)]
        return max((float(name[1]) for name in names if name is not None), default=NONE)
