"""Feedback in JSON Lines: a request is answered once its line is stored, which does not block the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

from ranking.artifacts.kafka_address import KafkaAddress
from ranking.artifacts.log_names import FEEDBACK
from ranking.artifacts.object_store import ObjectLocation
from service.logs.bounded_queue import BoundedQueue, Queued
from service.logs.log_folder import LogFolder
from service.logs.log_thread import LogThread
from service.logs.object_folder import ObjectFolder
from service.logs.open_topic import open_topic
from service.logs.quota import FolderFullError, KeyQuotaError, LogQuota
from service.logs.rotating_files import RotatingFiles, size_of_lines
from service.logs.sink import LogSink, LogUsage
from service.protocol.messages import SuspectReason
from service.settings import Settings
from service.telemetry.metrics import Metrics

MAX_QUEUED_WRITES = 1_000
"""Maximum number of feedback requests that wait to be written."""
MAX_QUEUED_BYTES = 32 * 1024 * 1024
"""Maximum size of the bodies of feedback requests that wait to be written. One request may always wait."""
KEY_SHARE = 0.5
"""Maximum share of the queue that the requests of one API key may take, so that others find room in it."""
CHUNK_WRITES = 50
"""Maximum number of feedback requests whose lines are written together."""
CHUNK_BYTES = 256 * 1024
"""Maximum size of their bodies; a larger body is written alone."""
FILE_BYTES = 64 * 1024 * 1024
"""Size at which a file is closed."""
WRITE_SECONDS = 10.0
"""Maximum seconds that a request waits to be written; a hung filesystem must not hold its connection."""


class FeedbackQueueFullError(Exception):
    """Too many feedback requests wait to be written."""


class FeedbackTooLargeError(Exception):
    """The feedback of a request is larger than the destination accepts."""


REJECTIONS = {FeedbackTooLargeError: "too_large", FolderFullError: "folder_full", KeyQuotaError: "key_quota"}
"""Reasons of rejections in metrics."""


@dataclass(frozen=True)
class FeedbackRecord:
    """Feedback of one request, ready to be written.

    Attributes:
        line: one line of JSON.
        events: number of events.
        flagged: number of suspect events by reason.
    """

    line: bytes
    events: int
    flagged: Mapping[SuspectReason, int]


Reply: TypeAlias = asyncio.Future[FeedbackRecord]


class _Request(NamedTuple):
    """A request in the queue: the function that decodes its body, and its reply."""

    decode: Callable[[], FeedbackRecord]
    reply: Reply


class FeedbackLog(LogThread[_Request]):
    """Writes the lines of feedback requests.

    Args:
        sink: destination.
        quota: quotas of the destination.
        metrics: metrics of the service.
    """

    def __init__(self, sink: LogSink, quota: LogQuota, metrics: Metrics) -> None:
        super().__init__(
            "feedback",
            BoundedQueue(
                MAX_QUEUED_WRITES,
                MAX_QUEUED_BYTES,
                CHUNK_WRITES,
                CHUNK_BYTES,
                wait_for_chunk=False,
                key_share=KEY_SHARE,
            ),
            sink,
            quota,
            "feedback cannot be written",
        )
        self._metrics = metrics
        self._results: dict[Reply, FeedbackRecord | Exception] = {}
        self.start()

    @classmethod
    def from_settings(cls, settings: Settings, metrics: Metrics) -> Self | None:
        """Create the log, or return None if ``feedback_dir`` is not set.

        Raises:
            ConfigError: the client of Kafka or of object storage is not installed.
            OutputError: the folder is not writable.
        """
        target = settings.feedback_dir
        if target is None:
            return None
        if isinstance(target, KafkaAddress):  # its retention bounds its size
            topic = open_topic(target, FEEDBACK, "send fewer events at a time")
            return cls(topic, LogQuota(1), metrics)
        if isinstance(target, ObjectLocation):
            return cls(ObjectFolder(target, FEEDBACK), LogQuota(1), metrics)
        folder = LogFolder(target, FEEDBACK, "feedback", recover=size_of_lines)
        metrics.feedback_folder_limit_bytes.set(settings.max_log_bytes)
        files = RotatingFiles(folder, FILE_BYTES, settings.feedback_max_seconds, metrics.feedback_failures)
        return cls(files, LogQuota(settings.workers, settings.max_log_bytes), metrics)

    def check(self, key: str | None, size: int) -> None:
        """Check whether there is room for a request whose body has not been read yet.

        Args:
            key: name of the request's API key, or None without keys.
            size: size of the body in bytes, as far as it is known.

        Raises:
            FeedbackQueueFullError: the queue is full.
            FolderFullError: the folder has reached its quota.
            KeyQuotaError: the files of the key have reached their quota.
        """
        if not self._queue.has_room(1, size, key):
            raise FeedbackQueueFullError
        self._quota.check(key, size)

    async def write(self, key: str | None, size: int, decode: Callable[[], FeedbackRecord]) -> FeedbackRecord:
        """Write the feedback of a request; it survives the end of this process once this method returns.

        Args:
            key: name of the request's API key, or None without keys.
            size: size of the body in bytes.
            decode: function that decodes and checks the body; it is called by the thread.

        Raises:
            FeedbackQueueFullError: the queue is full.
            FeedbackTooLargeError: the feedback is larger than a Kafka message.
            FolderFullError: the folder has reached its quota.
            KeyQuotaError: the files of the key have reached their quota.
            OSError: the record could not be written, or not in time.
            Exception: any error of ``decode``.
        """
        reply: Reply = asyncio.get_running_loop().create_future()
        if not self._queue.put(_Request(decode, reply), 1, size, key):
            raise FeedbackQueueFullError
        self._metrics.feedback_queue_bytes.set(self._queue.bytes)
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                return await reply
        except TimeoutError as error:
            self._metrics.feedback_failures.labels("write").inc()
            self._report(f"not within {WRITE_SECONDS:g} s")
            raise error from None

    # The thread

    def _write(self, taken: list[Queued[_Request]]) -> None:
        """Decode requests, and write their lines by API key."""
        records: list[tuple[str | None, Reply, FeedbackRecord]] = []
        sizes: Counter[str | None] = Counter()
        for (decode, reply), _, _, key in taken:
            if reply.done():  # the client has disconnected or has waited for too long
                continue
            try:
                records.append((key, reply, decode()))
            except Exception as error:
                self._results[reply] = error
            else:
                sizes[key] += len(records[-1][2].line)
        self._scan_if_nearly_full(sizes)
        groups: defaultdict[str | None, dict[Reply, FeedbackRecord]] = defaultdict(dict)
        for key, reply, record in records:
            try:
                self._accept(key, record)
            except (FeedbackTooLargeError, FolderFullError, KeyQuotaError) as error:
                self._count_rejected(record, REJECTIONS[type(error)])
                self._results[reply] = error
            else:
                groups[key if self._sink.separates_keys else None][reply] = record
        for key, group in groups.items():
            self._store(key, {reply: record for reply, record in group.items() if not reply.done()})

    def _maintain(self, *, closing: bool = False) -> float:
        """Measure the queue, too; see ``LogThread``."""
        self._metrics.feedback_queue_bytes.set(self._queue.bytes)
        return super()._maintain(closing=closing)

    def _finish_entries(self) -> None:
        """Reply to the requests that were written or rejected."""
        self._metrics.feedback_queue_bytes.set(self._queue.bytes)
        results, self._results = self._results, {}
        for reply, result in results.items():
            _send_reply(reply, result)

    def _accept(self, key: str | None, record: FeedbackRecord) -> None:
        """Count a record toward the quotas.

        Raises:
            FeedbackTooLargeError: the line is larger than the destination accepts.
            FolderFullError: the folder has reached its quota.
            KeyQuotaError: the files of the key have reached their quota.
        """
        size, limit = len(record.line), self._sink.max_bytes
        if size > limit:
            reason = f"{size} bytes of feedback exceed the {limit:.0f} bytes of a Kafka message"
            raise FeedbackTooLargeError(f"{reason}; send fewer events at a time")
        self._quota.check(key, size)
        self._quota.add(key, size)

    def _store(self, key: str | None, group: Mapping[Reply, FeedbackRecord]) -> None:
        """Write the lines of an API key, or of all."""
        content = b"".join(record.line for record in group.values())
        try:
            if content:
                self._sink.write(content, key)
        except Exception as error:
            self._quota.add(key, -len(content))
            self._metrics.feedback_failures.labels("write").inc(len(group))
            self._report(getattr(error, "strerror", None) or f"{type(error).__name__}: {error!s:.200}")
            for record in group.values():
                self._count_rejected(record, "not_written")
            self._results |= dict.fromkeys(group, error)
            return
        self._metrics.feedback_bytes.inc(len(content))
        for record in group.values():
            for reason, count in record.flagged.items():
                self._metrics.feedback_events.labels("accepted", reason).inc(count)
            self._metrics.feedback_events.labels("accepted", "").inc(record.events - sum(record.flagged.values()))
        self._results |= group

    def _count_rejected(self, record: FeedbackRecord, reason: str) -> None:
        self._metrics.feedback_events.labels("rejected", reason).inc(record.events)

    def _record_scan(self, usage: LogUsage | None) -> None:
        if usage is None:
            self._metrics.feedback_failures.labels("scan").inc()
        else:
            self._metrics.feedback_folder_bytes.set(usage.total)
            self._metrics.feedback_unfinished_since.set(usage.oldest_part)


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
