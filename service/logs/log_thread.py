"""The thread of a log: it writes what the event loop queues, and leaves the processor to ranking."""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Generic

from service.logs.bounded_queue import BoundedQueue, Entry, Queued
from service.logs.quota import LogQuota
from service.logs.sink import LogSink, LogUsage
from service.settings import CLOSE_SECONDS

log = logging.getLogger("ranker.service")

MAX_CPU_SHARE = 0.25
"""Maximum share of a core that the thread takes, because ranking waits while it holds the interpreter lock."""
SCAN_SECONDS = 5.0
"""Seconds between two scans of the destination."""
MIN_SCAN_SECONDS = 0.1
"""Minimum seconds between two scans while a quota is nearly reached."""
MAX_SCAN_SHARE = 0.02
"""Maximum share of the thread's time that scans take in a folder of very many files."""
MAX_SCAN_SECONDS = 60.0
"""Maximum seconds between two scans, also if one took long because the machine or the filesystem did not respond."""
LOG_SECONDS = 60.0
"""Minimum seconds between two log lines about failures."""


class LogThread(ABC, Generic[Entry]):
    """Writes the entries of a queue to a destination in a thread of its own.

    Args:
        name: name of the thread.
        queue: queue between the event loop and the thread.
        sink: destination.
        quota: quotas of the destination.
        failure: first words of log lines about failures.
        collect_seconds: maximum seconds between two calls of ``_write`` while entries wait.
    """

    def __init__(
        self,
        name: str,
        queue: BoundedQueue[Entry],
        sink: LogSink,
        quota: LogQuota,
        failure: str,
        collect_seconds: float = math.inf,
    ) -> None:
        self._queue, self._sink, self._quota, self._failure = queue, sink, quota, failure
        self._collect_seconds = collect_seconds
        self._last_scan = self._next_scan = self._next_log = -math.inf
        self._cpu = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Scan the destination, and start the thread."""
        self._scan()
        self._thread.start()

    def close(self) -> None:
        """Write the queued entries, finish all files, and stop the thread."""
        self._closed.set()
        self._queue.wake()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            log.error("%s: the destination does not respond; what waits to be written is lost", self._failure)

    @abstractmethod
    def _write(self, taken: list[Queued[Entry]]) -> None:
        """Write entries that were taken from the queue."""

    def _finish_entries(self) -> None:
        """Continue after the entries were released from the queue."""

    def _maintain(self, *, closing: bool = False) -> float:
        """Write what is due, or all, and scan; return the seconds until the next call."""
        seconds = self._sink.maintain(closing=closing)
        if time.monotonic() >= self._next_scan:
            self._scan()
        return min(seconds, self._collect_seconds, max(0.0, self._next_scan - time.monotonic()))

    def _run(self) -> None:
        while not self._closed.is_set():
            self._step()
            with self._reporting():
                self._queue.wait(self._maintain())
        self._step()
        with self._reporting():
            self._maintain(closing=True)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Report any error, because the thread must not end before the service."""
        try:
            yield
        except Exception as error:
            self._report(f"{type(error).__name__}: {error!s:.200}")
            self._closed.wait(MIN_SCAN_SECONDS)  # an error at each call must not occupy the processor

    def _step(self) -> None:
        """Write the entries that wait now; later ones wait for the next step, because few at a time cost more."""
        self._cpu = time.thread_time()
        waiting = len(self._queue)
        while waiting > 0:
            taken = self._queue.take()
            waiting -= len(taken)
            with self._reporting():
                try:
                    self._write(taken)
                finally:
                    self._queue.release(taken)
                    self._finish_entries()
                self._maintain()
            self._pause()

    def _pause(self) -> None:
        """Leave the processor to others for a multiple of the time that the thread has used since the last pause."""
        used = time.thread_time() - self._cpu
        self._closed.wait(used * (1.0 / MAX_CPU_SHARE - 1.0))
        self._cpu = time.thread_time()

    def _scan_if_nearly_full(self, sizes: Mapping[str | None, int]) -> None:
        """Scan before writes of these sizes by API key, if they may exceed a quota."""
        recently = time.monotonic() - self._last_scan < MIN_SCAN_SECONDS
        total = sum(sizes.values())
        if not recently and (
            self._quota.needs_scan(None, total) or any(self._quota.needs_scan(key, size) for key, size in sizes.items())
        ):
            self._scan()

    def _scan(self) -> None:
        start = time.monotonic()
        try:
            usage = self._sink.scan()
        except OSError as error:
            self._record_scan(None)
            reason = error.strerror or str(error)
            self._report(f"{error.filename}: {reason}" if error.filename else reason)
        else:
            self._quota.replace_usage(usage)
            self._record_scan(usage)
        self._last_scan = end = time.monotonic()
        self._next_scan = end + min(max(SCAN_SECONDS, (end - start) / MAX_SCAN_SHARE), MAX_SCAN_SECONDS)

    def _record_scan(self, usage: LogUsage | None) -> None:
        """Record the result of a scan in metrics; None if it failed."""

    def _report(self, explanation: str) -> None:
        if time.monotonic() >= self._next_log:
            self._next_log = time.monotonic() + LOG_SECONDS
            log.error("%s: %s", self._failure, explanation)
