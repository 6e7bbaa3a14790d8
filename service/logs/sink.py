"""Destinations of a log: a folder, a Kafka topic, or object storage."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LogUsage:
    """Sizes that count toward the quotas of a log.

    Attributes:
        total: size of all files in bytes.
        by_key: size of the files of each API key in bytes.
        oldest_part: Unix time of the creation of the oldest unfinished file, or infinity if there is none.
    """

    total: int = 0
    by_key: Mapping[str, int] = field(default_factory=dict)
    oldest_part: float = math.inf


class LogSink(ABC):
    """A destination.

    Attributes:
        max_bytes: maximum size of the content of a write.
        separates_keys: whether a write holds content of one API key only.
    """

    max_bytes: float = math.inf
    separates_keys = True

    @abstractmethod
    def write(self, content: bytes | memoryview, key: str | None = None) -> object:
        """Store content for an API key, or without one.

        Raises:
            OSError: the content may not have been stored.
        """

    @abstractmethod
    def scan(self) -> LogUsage:
        """Measure the files, after deleting what has expired.

        Raises:
            OSError: the destination cannot be read.
        """

    def maintain(self, *, closing: bool = False) -> float:  # noqa: ARG002 — only sinks with open files use it
        """Finish files that are due, or all; return the seconds until the next one is due, or infinity."""
        return math.inf
