"""Thread that converts answered requests to Parquet files, so that requests do not wait for it."""

from __future__ import annotations

import errno
import logging
import math
import threading
import time
from collections import Counter, deque
from typing import Self
from weakref import WeakKeyDictionary

import pyarrow as pa

from ranking.artifacts.user_hash import UserHash
from service.engine.model import LoadedModel
from service.served.buffer import VersionBuffer
from service.served.columns import ServedColumns
from service.served.record import ServedRequest, is_sampled
from service.served.sink import ServedSink, open_sink
from service.settings import CLOSE_SECONDS, Settings
from service.telemetry.metrics import Metrics, ServedDrop

log = logging.getLogger("ranker.service")

MAX_QUEUED_CANDIDATES = 100_000
"""Maximum number of candidates of requests that wait to be converted. One request may always wait."""
MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""Maximum memory of their values."""
COLLECT_SECONDS = 2.0
"""Maximum seconds between two conversions: many requests are converted together, and models are not kept for long."""
COLLECT_SHARE = 0.2
"""Maximum share of ``served_log_seconds`` between two conversions."""
CHUNK_CANDIDATES = 20_000
"""Approximate number of candidates that are converted at once, as soon as so many wait.

It bounds the memory of waiting requests, and the time for which the interpreter lock is held.
"""
CHUNK_BYTES = 16 * 1024 * 1024
"""Approximate memory of the values that are converted at once."""
EARLY_SHARE = 0.8
"""Share of ``served_log_seconds`` before whose end a file is begun, so that it is finished within the whole time."""
MAX_CPU_SHARE = 0.25
"""Maximum share of a core that the thread takes, because ranking waits while it holds the interpreter lock."""
SCAN_SECONDS = 10.0
"""Seconds between two scans of the folder."""
MAX_SCAN_SHARE = 0.01
"""Maximum share of the thread's time that scans take in a folder of very many files."""
MAX_SCAN_SECONDS = 60.0
"""Maximum seconds between two scans, also if one took long because the machine or the filesystem did not respond."""
LOG_SECONDS = 60.0
"""Minimum seconds between two log lines about requests that are dropped."""

REASONS: dict[ServedDrop, str] = {
    "queue_full": "requests arrive faster than they can be written",
    "folder_full": "its files have reached served_log_max_total_bytes",
}
"""Explanation of the reasons for which requests are not queued."""


class ServedLog:
    """Logs answered requests; one instance per process.

    Args:
        sink: Destination of the files.
        settings: Limits and options of the log.
        metrics: Metrics of the service.
    """

    def __init__(self, sink: ServedSink, settings: Settings, metrics: Metrics) -> None:
        self._sink, self._settings, self._metrics = sink, settings, metrics
        self._max_bytes = min(settings.served_log_max_bytes, sink.max_bytes)
        self._share = settings.served_share
        self._collect_seconds = min(COLLECT_SECONDS, COLLECT_SHARE * settings.served_log_seconds)
        key = settings.served_log_user_key
        self._hash_user = None if key is None else UserHash(key.get_secret_value())
        self._queue: deque[ServedRequest] = deque()
        self._queued_candidates = self._queued_bytes = 0  # written by the event loop
        self._taken_candidates = self._taken_bytes = 0  # written by the thread
        self._rejected: Counter[ServedDrop] = Counter()  # counted by the event loop, published by the thread
        self._published: Counter[ServedDrop] = Counter()
        self._columns: WeakKeyDictionary[LoadedModel, ServedColumns] = WeakKeyDictionary()
        self._buffers: dict[ServedColumns, VersionBuffer] = {}
        self._oldest = math.inf  # time of arrival of the first request in the buffers
        self._next_log = self._next_scan = -math.inf
        self._used_bytes = 0
        self._full = False
        self._cpu = self._published_cpu = 0.0
        self._closed, self._wake = threading.Event(), threading.Event()
        metrics.served_finished.set(time.time())
        self._scan()
        self._thread = threading.Thread(target=self._run, name="served-log", daemon=True)
        self._thread.start()

    @classmethod
    def from_settings(cls, settings: Settings, metrics: Metrics) -> Self | None:
        """Create the log, or return None if ``served_log`` is not set.

        Raises:
            ConfigError: The Kafka client is not installed.
            OutputError: The folder is not writable.
        """
        sink = open_sink(settings)
        return None if sink is None else cls(sink, settings, metrics)

    def add(self, request: ServedRequest) -> None:
        """Queue an answered request, or drop it if the queue or the folder is full. Called by the event loop only."""
        if not is_sampled(request.user, request.request_id, self._share):
            return
        if self._full:
            self._rejected["folder_full"] += 1
            return
        candidates, size = request.candidates, request.bytes
        waiting = self._queued_candidates - self._taken_candidates + candidates
        waiting_bytes = self._queued_bytes - self._taken_bytes + size
        if waiting_bytes > size and (waiting > MAX_QUEUED_CANDIDATES or waiting_bytes > MAX_QUEUED_BYTES):
            self._rejected["queue_full"] += 1
            return
        self._queued_candidates += candidates
        self._queued_bytes += size
        self._queue.append(request)
        if (waiting >= CHUNK_CANDIDATES or waiting_bytes >= CHUNK_BYTES) and not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Write all requests and stop the thread."""
        self._closed.set()
        self._wake.set()
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            log.error("the served log cannot be written: its destination does not respond; its last requests are lost")

    # The thread

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wake.wait(self._collect_seconds)
            self._wake.clear()
            self._step()
        self._step(closing=True)

    def _step(self, *, closing: bool = False) -> None:
        """Convert the queued requests, and write files that are due."""
        self._cpu = time.thread_time()
        waiting = len(self._queue)  # later requests wait for the next step, because few at a time cost more
        while waiting > 0:
            waiting -= self._convert()
            self._pause()
            if self._is_due():
                self._write_all()
        if closing or self._is_due():
            self._write_all()
        if time.monotonic() >= self._next_scan:
            self._scan()
        self._publish()

    def _pause(self) -> None:
        """Leave the processor to others for a multiple of the time that the thread has used since the last pause."""
        used = time.thread_time() - self._cpu
        self._closed.wait(used * (1.0 / MAX_CPU_SHARE - 1.0))
        self._cpu = time.thread_time()

    def _is_due(self) -> bool:
        size = sum(buffer.bytes for buffer in self._buffers.values())
        latest = EARLY_SHARE * self._settings.served_log_seconds - self._collect_seconds
        return time.monotonic() - self._oldest >= latest or size >= self._max_bytes

    def _convert(self) -> int:
        """Convert the next requests to tables, one per version; return their number."""
        chunk: dict[LoadedModel, list[ServedRequest]] = {}
        candidates = size = 0
        self._oldest = min(self._oldest, self._queue[0].arrived)
        while self._queue and candidates < CHUNK_CANDIDATES and size < CHUNK_BYTES:
            request = self._queue.popleft()
            candidates += request.candidates
            size += request.bytes
            chunk.setdefault(request.model, []).append(request)
        for model, requests in chunk.items():
            try:
                self._buffer(model).add(requests)
            except Exception as error:  # the log must neither end nor harm the service
                self._drop("write_failed", len(requests), f"{type(error).__name__}: {error!s:.200}")
        self._taken_candidates += candidates
        self._taken_bytes += size
        return sum(map(len, chunk.values()))

    def _buffer(self, model: LoadedModel) -> VersionBuffer:
        if model not in self._columns:
            self._columns[model] = ServedColumns(model, self._settings.served_log_exclude, self._hash_user)
        columns = self._columns[model]
        if columns not in self._buffers:
            self._buffers[columns] = VersionBuffer(columns, str(self._settings.repository.absolute()))
        return self._buffers[columns]

    def _write_all(self) -> None:
        """Write a file for each version."""
        buffers, self._buffers, self._oldest = self._buffers, {}, math.inf
        for buffer in buffers.values():
            if not buffer.requests:
                continue
            remaining = buffer.requests
            try:
                for content, requests in buffer.encode(self._pause, self._sink.max_bytes):
                    self._write(content, requests)
                    remaining -= requests
            except OSError as error:
                reason: ServedDrop = "lost" if error.errno == errno.ESTALE else "write_failed"
                self._drop(reason, remaining, error.strerror or str(error))
            except Exception as error:
                self._drop("write_failed", remaining, f"{type(error).__name__}: {error!s:.200}")

    def _write(self, content: pa.Buffer, requests: int) -> None:
        limit = self._settings.served_log_max_total_bytes
        if self._used_bytes + content.size > limit:
            self._scan()  # files may have been collected
        if self._used_bytes + content.size > limit:
            reason = f"its files have {self._used_bytes} bytes, and served_log_max_total_bytes is {limit}"
            self._drop("folder_full", requests, reason)
            return
        self._sink.write(memoryview(content))
        self._used_bytes += content.size
        self._metrics.served_bytes.inc(content.size)
        self._metrics.served_requests.inc(requests)
        self._metrics.served_finished.set(time.time())

    def _scan(self) -> None:
        start = time.monotonic()
        try:
            self._used_bytes = self._sink.scan()
        except OSError as error:
            self._report(f"{self._settings.served_log}: {error.strerror}")
        self._full = self._used_bytes >= self._settings.served_log_max_total_bytes
        end = time.monotonic()
        self._next_scan = end + min(max(SCAN_SECONDS, (end - start) / MAX_SCAN_SHARE), MAX_SCAN_SECONDS)

    def _publish(self) -> None:
        """Update the metrics of the queue, which the event loop only counts."""
        for reason, count in list(self._rejected.items()):
            if count > self._published[reason]:
                self._drop(reason, count - self._published[reason], REASONS[reason])
                self._published[reason] = count
        cpu = time.thread_time()
        self._metrics.served_cpu.inc(cpu - self._published_cpu)
        self._published_cpu = cpu
        waiting = self._queued_candidates - self._taken_candidates
        self._metrics.served_queue_rows.set(waiting + sum(buffer.candidates for buffer in self._buffers.values()))

    def _drop(self, reason: ServedDrop, requests: int, explanation: str) -> None:
        self._metrics.served_dropped.labels(reason).inc(requests)
        self._report(explanation)

    def _report(self, explanation: str) -> None:
        if time.monotonic() >= self._next_log:
            self._next_log = time.monotonic() + LOG_SECONDS
            log.error("the served log drops requests: %s", explanation)
