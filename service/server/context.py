"""State that the connections of a process share with its application: limits, admission, pacing and lifecycle."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
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
from service.protocol.problems import (
    OPEN_INFERENCE_ROOT,
    Problem,
    bodies_full,
    is_open_inference_path,
    queue_full,
    to_response,
)
from service.server.body_budget import BodyBudget
from service.server.pacing import RejectionPacer, StartPacer
from service.settings import Settings
from service.telemetry.metrics import Metrics

STATE_KEY = "server_context"
"""Key of the context in the state of the application's lifespan."""


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


class StaticResponse:
    """A problem as a response that is serialized once and written by the protocol without the application.

    Args:
        problem: problem to respond with.
        path: path whose form of errors the response has.
    """

    def __init__(self, problem: Problem, path: str = "") -> None:
        serialized = to_response(problem, path)
        headers = _header_lines([*serialized.raw_headers, *SECURITY_HEADERS])
        self._head, self._body = STATUS_LINE[problem.status] + headers, bytes(serialized.body)

    def to_bytes(self, default_headers: Iterable[Header], request_headers: Iterable[Header], *, close: bool) -> bytes:
        """Return the whole response.

        Args:
            default_headers: headers of every response of the server.
            request_headers: headers of the request; the response echoes ``ECHOED_HEADERS``.
            close: whether the connection closes after the response.
        """
        echoed = [
            header for header in request_headers if header[0] in ECHOED_HEADERS and SAFE_VALUE.fullmatch(header[1])
        ]
        connection = b"connection: close\r\n" if close else b""
        return self._head + _header_lines(default_headers) + _header_lines(echoed) + connection + b"\r\n" + self._body


class ProblemResponses:
    """A problem as a response in each form of errors.

    Args:
        problem: problem to respond with.
    """

    def __init__(self, problem: Problem) -> None:
        self._document, self._open_inference = StaticResponse(problem), StaticResponse(problem, OPEN_INFERENCE_ROOT)

    def to(self, target: bytes) -> StaticResponse:
        """Return the response to a request with this target."""
        return self._open_inference if is_open_inference_path(target.decode("latin-1")) else self._document


@dataclass(frozen=True)
class ServerContext:
    """Shared state of a process, under ``STATE_KEY`` in the state of the application's lifespan.

    The decision which requests are admitted is made here only: ``rejects`` before a request is read, ``admit`` when
    the application starts to handle it.

    Attributes:
        settings: limits of the connections.
        admission: bounds of the rank requests in progress.
        lifecycle: whether the process drains.
        metrics: metrics that count rejected requests.
    """

    settings: Settings
    admission: Admission
    lifecycle: Lifecycle
    metrics: Metrics

    def rejects(self, target: bytes, *, busy: bool) -> bool:
        """Whether a request that has not been read yet must be rejected with 429.

        Args:
            target: target of the request.
            busy: whether the connection is busy, see ``Admission.is_full``.
        """
        return is_rank_path(target) and self.admission.is_full(busy=busy)

    def admit(self, path: str, state: MutableMapping[str, Any], *, busy: bool = False) -> Permit | None:
        """Acquire the permit of a rank request and store it in its state, under ``permit``.

        Args:
            path: path of the request.
            state: state of the request's ASGI scope.
            busy: whether the connection is busy, see ``Admission.is_full``.

        Returns:
            The new permit, which the caller must release; None if the request needs no permit or has one already.

        Raises:
            QueueFullError: the request must be rejected.
        """
        if not is_rank_path(path) or "permit" in state:
            return None
        permit = self.admission.try_acquire(busy=busy)
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
    def queue_full(self) -> ProblemResponses:
        """Response to rank requests above the admission limits."""
        return ProblemResponses(queue_full())

    @cached_property
    def bodies_full(self) -> ProblemResponses:
        """Response to requests whose body does not fit into the budget."""
        return ProblemResponses(bodies_full())

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
