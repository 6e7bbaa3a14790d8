"""Quotas of a log, for all files and for those of one API key."""

from __future__ import annotations

import math
from collections import Counter

from service.logs.sink import LogUsage

KEY_SHARE = 0.5
"""Share of a log's maximum size that the files of one API key may take."""


class FolderFullError(Exception):
    """The files of a log have reached their quota."""


class KeyQuotaError(Exception):
    """The files of an API key have reached their quota."""


class LogQuota:
    """Bounds the size of the files of a log.

    Files that are collected or deleted free their quota at the next scan. Between two scans, what this process writes
    is counted exactly; what others write is not known.

    Args:
        processes: number of processes of the service that write to the log.
        max_bytes: maximum size of all files. The files of an API key may take ``KEY_SHARE`` of it.
    """

    def __init__(self, processes: int, max_bytes: float = math.inf) -> None:
        self._processes, self._max_total, self._max_key = processes, max_bytes, KEY_SHARE * max_bytes
        self._counts = _Counts(LogUsage())

    def replace_usage(self, usage: LogUsage) -> None:
        """Set the result of a scan."""
        self._counts = _Counts(usage)

    def add(self, key: str | None, size: int) -> None:
        """Count bytes that were written for a key."""
        self._counts.written[key] += size

    def check(self, key: str | None, size: int) -> None:
        """Check whether a write fits into the quotas; may be called by any thread.

        Args:
            key: name of the API key, or None without keys.
            size: size of the write in bytes.

        Raises:
            FolderFullError: the log would exceed its quota.
            KeyQuotaError: the files of the key would exceed theirs.
        """
        counts = self._counts
        total = counts.total(1)
        if total + size > self._max_total:
            raise FolderFullError(f"its files have {total} bytes, and max_log_bytes is {self._max_total:.0f}")
        of_key = counts.of_key(key, 1)
        if key is not None and of_key + size > self._max_key:
            limit = f"the limit is half of max_log_bytes, {self._max_key:.0f}"
            raise KeyQuotaError(f"its files have {of_key} bytes, and {limit}")

    def needs_scan(self, key: str | None, size: int) -> bool:
        """Whether a write may exceed a quota, if the other processes have written as much as this one."""
        counts, factor = self._counts, self._processes
        if counts.total(factor) + size * factor > self._max_total:
            return True
        return key is not None and counts.of_key(key, factor) + size * factor > self._max_key


class _Counts:
    """Result of a scan, and bytes by key that were written since; replaced as a whole, because two threads read it."""

    def __init__(self, usage: LogUsage) -> None:
        self._usage = usage
        self.written: Counter[str | None] = Counter()

    def total(self, factor: int) -> int:
        """Return the size of all files, with ``factor`` times what was written."""
        return self._usage.total + sum(list(self.written.values())) * factor

    def of_key(self, key: str | None, factor: int) -> int:
        """Return the size of the files of a key, with ``factor`` times what was written."""
        return (0 if key is None else self._usage.by_key.get(key, 0)) + self.written[key] * factor
