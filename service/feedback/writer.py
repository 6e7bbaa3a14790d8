"""Thread that checks and writes feedback, so that neither its cost nor the disk's latency delays the event loop."""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self, TypeAlias

from service.feedback.files import RotatingJsonlFile
from service.feedback.folder import FeedbackFolder
from service.feedback.quota import FeedbackQuota, FolderFullError, KeyQuotaError
from service.protocol.messages import SuspectReason
from service.settings import CLOSE_SECONDS, Settings
from service.telemetry.metrics import Metrics

log = logging.getLogger("ranker.service")

MAX_QUEUED_WRITES = 1_000
"""Maximum number of feedback requests that wait to be written."""
MAX_QUEUED_BYTES = 32 * 1024 * 1024
"""Maximum size of the bodies of feedback requests that wait to be written. One request may always wait."""
KEY_SHARE = 0.5
"""Maximum share of the queue that the requests of one API key may take, so that others find room in it."""
WRITE_SECONDS = 10.0
"""Maximum seconds that a request waits to be written; a hung filesystem must not hold its connection."""
SCAN_SECONDS = 5.0
"""Seconds between two scans of the folder."""
MIN_SCAN_SECONDS = 0.1
"""Minimum seconds between two scans while a quota is nearly reached."""
MAX_SCAN_SHARE = 0.05
"""Maximum share of the thread's time that scans take in a folder of very many files."""
MAX_SCAN_SECONDS = 60.0
"""Maximum seconds between two scans, also if one took long because the machine or the filesystem did not respond."""
MAX_CPU_SHARE = 0.25
"""Maximum share of a core that the thread takes, because ranking waits while it holds the interpreter lock."""
LOG_SECONDS = 60.0
"""Minimum seconds between two log lines about writes that fail."""
MAX_OPEN_FILES = 100
"""Maximum number of unfinished files of a process, one per API key; beyond it the oldest is finished early."""


class FeedbackQueueFullError(Exception):
    """Too many feedback requests wait to be written."""


@dataclass(frozen=True)
class FeedbackRecord:
    """Feedback of one request, ready to be written.

    Attributes:
        line: One line of JSON.
        events: Number of events.
        flagged: Number of suspect events by reason.
    """

    line: bytes
    events: int
    flagged: Mapping[SuspectReason, int]


Reply: TypeAlias = asyncio.Future[FeedbackRecord]


@dataclass(frozen=True)
class _Entry:
    """A request in the queue: its API key, the size of its body, the function that decodes it, and its reply."""

    key: str | None
    size: int
    decode: Callable[[], FeedbackRecord]
    reply: Reply


class FeedbackWriter:
    """Writes feedback to the files of this process, one at a time for each API key.

    Args:
        folder: Folder of the files.
        settings: Sizes and ages of the files, and quotas.
        metrics: Metrics of the service.
    """

    def __init__(self, folder: FeedbackFolder, settings: Settings, metrics: Metrics) -> None:
        self._folder, self._settings, self._metrics = folder, settings, metrics
        limits = settings.feedback_max_total_bytes, settings.feedback_max_key_bytes
        self._quota = FeedbackQuota(*limits, settings.workers)
        self._files: dict[str | None, RotatingJsonlFile] = {}
        self._queue: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards the two counters
        self._queued_bytes: Counter[str | None] = Counter()
        self._queued_writes: Counter[str | None] = Counter()
        self._next_scan = self._last_scan = -math.inf
        self._next_log = -math.inf
        metrics.feedback_folder_limit_bytes.set(settings.feedback_max_total_bytes)
        self._scan()
        self._thread = threading.Thread(target=self._run, name="feedback", daemon=True)
        self._thread.start()

    @classmethod
    def from_settings(cls, settings: Settings, metrics: Metrics) -> Self | None:
        """Create a writer, or return None if ``feedback_dir`` is not set.

        Raises:
            OutputError: The folder is not writable.
        """
        if settings.feedback_dir is None:
            return None
        return cls(FeedbackFolder(settings.feedback_dir), settings, metrics)

    def check(self, key: str | None, size: int) -> None:
        """Check whether there is room for a request whose body has not been read yet.

        Args:
            key: Name of the request's API key, or None without keys.
            size: Size of the body in bytes, as far as it is known.

        Raises:
            FeedbackQueueFullError: The queue is full.
            FolderFullError: The folder has reached its quota.
            KeyQuotaError: The files of the key have reached their quota.
        """
        with self._lock:
            self._check_queue(key, size)
        self._quota.check(key, size)

    async def write(self, key: str | None, size: int, decode: Callable[[], FeedbackRecord]) -> FeedbackRecord:
        """Write the feedback of a request; it survives the end of this process once this method returns.

        Args:
            key: Name of the request's API key, or None without keys.
            size: Size of the body in bytes.
            decode: Function that decodes and checks the body; it is called by the thread of the writer.

        Raises:
            FeedbackQueueFullError: The queue is full.
            FolderFullError: The folder has reached its quota.
            KeyQuotaError: The files of the key have reached their quota.
            OSError: The record could not be written, or not in time.
            Exception: Any error of ``decode``.
        """
        reply: Reply = asyncio.get_running_loop().create_future()
        with self._lock:
            self._check_queue(key, size)
            self._queued_bytes[key] += size
            self._queued_writes[key] += 1
        self._metrics.feedback_queue_bytes.inc(size)
        self._queue.put(_Entry(key, size, decode, reply))
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                return await reply
        except TimeoutError as error:
            self._metrics.feedback_failures.labels("write").inc()
            self._report_failure(f"not within {WRITE_SECONDS:g} s")
            raise error from None

    def close(self) -> None:
        """Write the queued records, finish the open files, and stop the thread."""
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            log.error("feedback cannot be written: the filesystem does not respond; unfinished files remain")

    def _check_queue(self, key: str | None, size: int) -> None:
        queued_bytes, queued_writes = self._queued_bytes.total(), self._queued_writes.total()
        share = 1.0 if key is None else KEY_SHARE
        if queued_writes and (
            queued_writes >= MAX_QUEUED_WRITES
            or queued_bytes + size > MAX_QUEUED_BYTES
            or self._queued_writes[key] >= share * MAX_QUEUED_WRITES
            or self._queued_bytes[key] + size > share * MAX_QUEUED_BYTES
        ):
            raise FeedbackQueueFullError

    # The thread

    def _run(self) -> None:
        while True:
            times = [seconds for file in self._files.values() if (seconds := file.seconds_until_due()) is not None]
            seconds = min([*times, max(0.0, self._next_scan - time.monotonic())])
            try:
                entry = self._queue.get(timeout=seconds)
            except queue.Empty:
                self._maintain()
                continue
            if entry is None:
                for file in self._files.values():
                    file.finish()
                return
            start = time.thread_time()
            self._handle(entry)
            self._maintain()
            time.sleep((time.thread_time() - start) * (1.0 / MAX_CPU_SHARE - 1.0))

    def _handle(self, entry: _Entry) -> None:
        result: FeedbackRecord | Exception | None = None
        if not entry.reply.done():  # the client has not disconnected and has not waited for too long
            try:
                result = self._write(entry)
            except Exception as error:
                result = error
        with self._lock:
            self._queued_bytes[entry.key] -= entry.size
            self._queued_writes[entry.key] -= 1
        self._metrics.feedback_queue_bytes.dec(entry.size)
        if result is not None:
            _send_reply(entry.reply, result)

    def _write(self, entry: _Entry) -> FeedbackRecord:
        record, key = entry.decode(), entry.key
        size = len(record.line)
        recently = time.monotonic() - self._last_scan < MIN_SCAN_SECONDS
        if not recently and self._quota.needs_scan(key, size):
            self._scan()
        try:
            self._quota.check(key, size)
            self._file(key).append(record.line)
        except FolderFullError:
            self._count_rejected(record, "folder_full")
            raise
        except KeyQuotaError:
            self._count_rejected(record, "key_quota")
            raise
        except OSError as error:
            self._count_rejected(record, "not_written")
            self._metrics.feedback_failures.labels("write").inc()
            self._report_failure(error.strerror)
            raise
        self._quota.add(key, size)
        self._metrics.feedback_bytes.inc(size)
        for reason, count in record.flagged.items():
            self._metrics.feedback_events.labels("accepted", reason).inc(count)
        self._metrics.feedback_events.labels("accepted", "").inc(record.events - sum(record.flagged.values()))
        return record

    def _count_rejected(self, record: FeedbackRecord, reason: str) -> None:
        self._metrics.feedback_events.labels("rejected", reason).inc(record.events)

    def _file(self, key: str | None) -> RotatingJsonlFile:
        """Return the file of a key."""
        if key not in self._files:
            failures = self._metrics.feedback_failures
            limits = self._settings.feedback_max_bytes, self._settings.feedback_max_seconds
            self._files[key] = RotatingJsonlFile(self._folder, *limits, failures, key)
        file = self._files[key]
        if file.seconds_until_due() is None:
            open_files = [other for other in self._files.values() if other.seconds_until_due() is not None]
            if len(open_files) >= MAX_OPEN_FILES:
                min(open_files, key=lambda other: other.seconds_until_due() or 0.0).finish()
        return file

    def _maintain(self) -> None:
        """Finish files that are due, and scan the folder if it is time to."""
        for file in self._files.values():
            if file.seconds_until_due() == 0.0:
                file.finish()
        if time.monotonic() >= self._next_scan:
            for file in self._files.values():
                file.check_in_place()
            self._scan()

    def _scan(self) -> None:
        start = time.monotonic()
        try:
            usage = self._folder.scan()
        except OSError as error:
            self._metrics.feedback_failures.labels("scan").inc()
            self._report_failure(f"{self._folder.path}: {error.strerror}")
        else:
            self._quota.replace_usage(usage)
            self._metrics.feedback_folder_bytes.set(usage.total)
            self._metrics.feedback_unfinished_since.set(usage.oldest_part)
        self._last_scan = end = time.monotonic()
        self._next_scan = end + min(max(SCAN_SECONDS, (end - start) / MAX_SCAN_SHARE), MAX_SCAN_SECONDS)

    def _report_failure(self, reason: str | None) -> None:
        if time.monotonic() >= self._next_log:
            self._next_log = time.monotonic() + LOG_SECONDS
            log.error("feedback cannot be written: %s", reason)


def _send_reply(reply: Reply, result: FeedbackRecord | Exception) -> None:
    def set_result() -> None:
        if reply.done():  # the client may have disconnected
            return
        if isinstance(result, Exception):
            reply.set_exception(result)
        else:
            reply.set_result(result)

    with suppress(RuntimeError):  # the event loop is closed
        reply.get_loop().call_soon_threadsafe(set_result)
