"""The served log: answered requests are converted to Parquet files in a thread, so that requests do not wait for it."""

from __future__ import annotations

import errno
import math
import time
from typing import Self
from weakref import WeakKeyDictionary

import pyarrow as pa

from ranking.artifacts.kafka_address import KafkaAddress
from ranking.artifacts.log_names import SERVED
from ranking.artifacts.object_store import ObjectLocation
from ranking.artifacts.user_hash import UserHash
from service.engine.model import LoadedModel
from service.logs.bounded_queue import BoundedQueue, Queued
from service.logs.log_folder import LogFolder
from service.logs.log_thread import LogThread
from service.logs.object_folder import FILE_BYTES, ObjectFolder
from service.logs.open_topic import open_topic
from service.logs.quota import FolderFullError, LogQuota
from service.logs.served_buffer import VersionBuffer
from service.logs.served_columns import ServedColumns
from service.logs.served_request import ServedRequest, is_sampled
from service.logs.sink import LogSink
from service.settings import Settings
from service.telemetry.metrics import Metrics, ServedDrop

MAX_QUEUED_CANDIDATES = 100_000
"""Maximum number of candidates of requests that wait to be converted. One request may always wait."""
MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""Maximum memory of their values."""
COLLECT_SECONDS = 2.0
"""Maximum seconds between two conversions: many requests are converted together, and models are not kept for long."""
COLLECT_SHARE = 0.2
"""Maximum share of ``served_log_seconds`` between two conversions."""
CHUNK_CANDIDATES = 20_000
"""Number of candidates that are converted at once, as soon as so many wait; a larger request is converted alone.

It bounds the memory of waiting requests, and the time for which the interpreter lock is held.
"""
CHUNK_BYTES = 16 * 1024 * 1024
"""Memory of the values that are converted at once; a larger request is converted alone."""
BUFFER_BYTES = 64 * 1024 * 1024
"""Size in memory of a process's requests at which they are written before ``served_log_seconds`` have passed."""
EARLY_SHARE = 0.8
"""Share of ``served_log_seconds`` before whose end a file is begun, so that it is finished within the whole time."""


class ServedLog(LogThread[ServedRequest]):
    """Logs answered requests; one instance per process.

    Args:
        sink: destination of the files.
        quota: quotas of the destination.
        settings: limits and options of the log.
        metrics: metrics of the service.
    """

    def __init__(self, sink: LogSink, quota: LogQuota, settings: Settings, metrics: Metrics) -> None:
        super().__init__(
            "served-log",
            BoundedQueue(MAX_QUEUED_CANDIDATES, MAX_QUEUED_BYTES, CHUNK_CANDIDATES, CHUNK_BYTES, wait_for_chunk=True),
            sink,
            quota,
            "the served log drops requests",
            min(COLLECT_SECONDS, COLLECT_SHARE * settings.served_log_seconds),
        )
        self._settings, self._metrics = settings, metrics
        self._max_bytes = min(BUFFER_BYTES, sink.max_bytes)
        self._share = settings.served_share
        key = settings.served_log_user_key
        self._hash_user = None if key is None else UserHash(key.get_secret_value())
        self._columns: WeakKeyDictionary[LoadedModel, ServedColumns] = WeakKeyDictionary()
        self._buffers: dict[ServedColumns, VersionBuffer] = {}
        self._oldest = math.inf  # time of arrival of the first request in the buffers
        self._published_cpu = 0.0
        metrics.served_finished.set(time.time())
        self.start()

    @classmethod
    def from_settings(cls, settings: Settings, metrics: Metrics) -> Self | None:
        """Create the log, or return None if ``served_log`` is not set.

        Raises:
            ConfigError: the client of Kafka or of object storage is not installed.
            OutputError: the folder is not writable.
        """
        target = settings.served_log
        if target is None:
            return None
        if isinstance(target, KafkaAddress):  # its retention bounds its size
            topic = open_topic(target, SERVED, "leave out columns with served_log_exclude")
            return cls(topic, LogQuota(1), settings, metrics)
        if isinstance(target, ObjectLocation):
            return cls(ObjectFolder(target, SERVED, FILE_BYTES), LogQuota(1), settings, metrics)
        folder = LogFolder(target, SERVED, "served log", days=settings.served_log_days)
        quota = LogQuota(settings.workers, settings.max_log_bytes)
        return cls(folder, quota, settings, metrics)

    def add(self, request: ServedRequest) -> None:
        """Queue an answered request, or drop it if the queue or the folder is full. Called by the event loop only."""
        if not is_sampled(request.user, request.request_id, self._share):
            return
        try:
            self._quota.check(None, 1)
        except FolderFullError as error:
            self._drop("folder_full", 1, str(error))
            return
        if not self._queue.put(request, request.candidates, request.bytes):
            self._drop("queue_full", 1, "requests arrive faster than they can be written")

    # The thread

    def _step(self) -> None:
        super()._step()
        cpu = time.thread_time()
        self._metrics.served_cpu.inc(cpu - self._published_cpu)
        self._published_cpu = cpu

    def _write(self, taken: list[Queued[ServedRequest]]) -> None:
        """Convert requests to tables, one per version."""
        by_model: dict[LoadedModel, list[ServedRequest]] = {}
        for request, *_ in taken:
            by_model.setdefault(request.model, []).append(request)
        self._oldest = min(self._oldest, taken[0].entry.arrived)
        for model, requests in by_model.items():
            try:
                self._buffer(model).add(requests)
            except Exception as error:  # the log must neither end nor harm the service
                self._drop("write_failed", len(requests), f"{type(error).__name__}: {error!s:.200}")

    def _maintain(self, *, closing: bool = False) -> float:
        """Write files that are due; see also ``LogThread``."""
        size = sum(buffer.bytes for buffer in self._buffers.values())
        latest = EARLY_SHARE * self._settings.served_log_seconds - self._collect_seconds
        if closing or time.monotonic() - self._oldest >= latest or size >= self._max_bytes:
            self._write_all()
        candidates = sum(buffer.candidates for buffer in self._buffers.values())
        self._metrics.served_queue_rows.set(self._queue.units + candidates)
        return super()._maintain(closing=closing)

    def _buffer(self, model: LoadedModel) -> VersionBuffer:
        if model not in self._columns:
            self._columns[model] = ServedColumns(model, self._settings.served_log_exclude, self._hash_user)
        columns = self._columns[model]
        if columns not in self._buffers:
            self._buffers[columns] = VersionBuffer(columns, self._settings.repository.absolute())
        return self._buffers[columns]

    def _write_all(self) -> None:
        """Write a file for each version."""
        buffers, self._buffers, self._oldest = self._buffers, {}, math.inf
        for buffer in buffers.values():
            remaining = buffer.requests
            if not remaining:
                continue
            try:
                for content, requests in buffer.encode(self._pause, self._sink.max_bytes):
                    self._write_file(content, requests)
                    remaining -= requests
            except OSError as error:
                reason: ServedDrop = "lost" if error.errno == errno.ESTALE else "write_failed"
                self._drop(reason, remaining, error.strerror or str(error))
            except Exception as error:
                self._drop("write_failed", remaining, f"{type(error).__name__}: {error!s:.200}")

    def _write_file(self, content: pa.Buffer, requests: int) -> None:
        self._scan_if_nearly_full({None: content.size})
        try:
            self._quota.check(None, content.size)
        except FolderFullError as error:
            self._drop("folder_full", requests, str(error))
            return
        self._sink.write(memoryview(content))
        self._quota.add(None, content.size)
        self._metrics.served_bytes.inc(content.size)
        self._metrics.served_requests.inc(requests)
        self._metrics.served_finished.set(time.time())

    def _drop(self, reason: ServedDrop, requests: int, explanation: str) -> None:
        self._metrics.served_dropped.labels(reason).inc(requests)
        self._report(explanation)
