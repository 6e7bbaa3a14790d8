"""State that the connections of a process share with its application: limits, admission, pacing and lifecycle."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from prometheus_client import Counter
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.engine.admission import Admission, Permit
from service.engine.errors import QueueFullError
from service.protocol.headers import (
    ECHOED_HEADERS,
    FEEDBACK_PATH,
    SAFE_VALUE,
    SECURITY_HEADERS,
    Header,
    is_rank_path,
)
from service.protocol.problems import RETRY_AFTER_SECONDS, Problem, bodies_full, queue_full, to_response
from service.server.body_budget import BodyBudget
from service.settings import Settings
from service.telemetry.metrics import Metrics

STATE_KEY = "server_context"
"""Key of the context in the state of the application's lifespan."""
MIN_SHARE = 1 / 32
"""Minimum share of an event loop iteration that a request takes: small requests have a fixed cost, too."""
RESUMED_PER_SECOND = 1_000
"""Connections per second whose next request is read after a 429. Rejecting one takes about 50 µs of the event loop."""
MAX_PAUSE_SECONDS = 0.9 * RETRY_AFTER_SECONDS
"""Maximum pause of a connection after a 429.

It ends before ``Retry-After``, so that the next request of a client that waits for it is read at once.
"""


class Lifecycle:
    """State that the server sets and the health endpoints report.

    Attributes:
        draining: whether the process is shutting down; it is not ready, but still answers requests.
    """

    def __init__(self) -> None:
        self.draining = False

    def drain(self) -> None:
        """Mark the process as shutting down."""
        self.draining = True


class StartPacer:
    """Starts at most one batch of rows per iteration of the event loop, in first-in, first-out order.

    In each iteration the event loop polls the connections once and then runs all callbacks that are ready. If all
    pending requests started in one iteration, rejecting others would wait for all of them. Starting less than a batch
    per iteration would make the batches of many small requests small.

    Args:
        max_rows: Maximum number of rows per iteration; a request with more takes a whole iteration.
    """

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self._pending: deque[tuple[Callable[[], None], float]] = deque()
        self._used_share = 0.0

    def submit(self, start: Callable[[], None], rows: int) -> None:
        """Call ``start`` at once if this iteration has capacity, else in a later one.

        Not thread-safe: call it from the event loop.
        """
        share = max(rows / self._max_rows, MIN_SHARE)
        if self._pending or (self._used_share and self._used_share + share > 1.0):
            self._pending.append((start, share))
            return
        self._start(start, share)

    def _start(self, start: Callable[[], None], share: float) -> None:
        if not self._used_share:
            asyncio.get_running_loop().call_soon(self._run_iteration)
        self._used_share += share
        start()

    def _run_iteration(self) -> None:
        self._used_share = 0.0
        while self._pending and (not self._used_share or self._used_share + self._pending[0][1] <= 1.0):
            self._start(*self._pending.popleft())


class RejectionPacer:
    """Spreads the next requests of rejected connections over time, so that rejections leave capacity for ranking.

    Clients that retry at once would otherwise occupy the event loop with rejections. While few connections are
    rejected their pauses are short; with many, pauses approach ``MAX_PAUSE_SECONDS``.
    """

    def __init__(self) -> None:
        self._last_resume = 0.0

    def next_pause(self, now: float) -> float:
        """Return the seconds for which to read nothing from a connection after a 429 at the time ``now``."""
        resume = max(self._last_resume, now) + 1.0 / RESUMED_PER_SECOND
        self._last_resume = min(resume, now + MAX_PAUSE_SECONDS)
        return (self._last_resume - now) * random.uniform(0.5, 1.0)  # else rejected clients would return together


class StaticResponse:
    """A problem as a response that is serialized once and written by the protocol without the application.

    Args:
        problem: Problem to respond with.
    """

    def __init__(self, problem: Problem) -> None:
        serialized = to_response(problem)
        headers = _header_lines([*serialized.raw_headers, *SECURITY_HEADERS])
        self._head, self._body = STATUS_LINE[problem.status] + headers, bytes(serialized.body)

    def to_bytes(self, default_headers: Iterable[Header], request_headers: Iterable[Header], *, close: bool) -> bytes:
        """Return the whole response.

        Args:
            default_headers: Headers of every response of the server.
            request_headers: Headers of the request; the response echoes ``ECHOED_HEADERS``.
            close: Whether the connection closes after the response.
        """
        echoed = [
            header for header in request_headers if header[0] in ECHOED_HEADERS and SAFE_VALUE.fullmatch(header[1])
        ]
        connection = b"connection: close\r\n" if close else b""
        return self._head + _header_lines(default_headers) + _header_lines(echoed) + connection + b"\r\n" + self._body


@dataclass(frozen=True)
class ServerContext:
    """Shared state of a process, under ``STATE_KEY`` in the state of the application's lifespan.

    The decision which requests are admitted is made here only: ``rejects`` before a request is read, ``admit`` when
    the application starts to handle it.

    Attributes:
        settings: Limits of the connections.
        admission: Bounds of the rank requests in progress.
        lifecycle: Whether the process drains.
        metrics: Metrics that count rejected requests.
    """

    settings: Settings
    admission: Admission
    lifecycle: Lifecycle
    metrics: Metrics

    def rejects(self, target: bytes) -> bool:
        """Whether a request that has not been read yet must be rejected with 429, given its target."""
        return is_rank_path(target) and self.admission.full

    def admit(self, path: str, state: MutableMapping[str, Any]) -> Permit | None:
        """Acquire the permit of a rank request and store it in its state, under ``permit``.

        Args:
            path: Path of the request.
            state: State of the request's ASGI scope.

        Returns:
            The new permit, which the caller must release; None if the request needs no permit or has one already.

        Raises:
            QueueFullError: The request must be rejected.
        """
        if not is_rank_path(path) or "permit" in state:
            return None
        permit = self.admission.try_acquire()
        if permit is None:
            raise QueueFullError
        state["permit"] = permit
        return permit

    def count_rejection(self, reason: str, target: bytes) -> None:
        """Count a request that is rejected with 429 before the application handles it."""
        self._rejections[reason].inc()
        if is_rank_path(target):
            self._rejected_rank_requests.inc()
        elif target == FEEDBACK_PATH.encode():
            self.metrics.record_feedback_request(429, reason)

    @cached_property
    def bodies(self) -> BodyBudget:
        """Bounds the bytes of bodies."""
        return BodyBudget(self.settings.body_budget, self.metrics.buffered_body_bytes)

    @cached_property
    def queue_full(self) -> StaticResponse:
        """Response to rank requests above the admission limits."""
        return StaticResponse(queue_full())

    @cached_property
    def bodies_full(self) -> StaticResponse:
        """Response to requests whose body does not fit into the budget."""
        return StaticResponse(bodies_full())

    @cached_property
    def rejection_pacer(self) -> RejectionPacer:
        """Delays the next requests of rejected connections."""
        return RejectionPacer()

    @cached_property
    def start_pacer(self) -> StartPacer:
        """Starts admitted requests."""
        return StartPacer(self.settings.max_batch_rows)

    @cached_property
    def _rejected_rank_requests(self) -> Counter:
        return self.metrics.requests.labels("429", "")

    @cached_property
    def _rejections(self) -> dict[str, Counter]:
        return {reason: self.metrics.rejections.labels(reason) for reason in ("queue_full", "body_memory")}


def _header_lines(headers: Iterable[Header]) -> bytes:
    return b"".join([name + b": " + value + b"\r\n" for name, value in headers])
