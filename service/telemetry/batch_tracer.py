"""OpenTelemetry spans of inference batches, linked to the spans of their requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from service.telemetry.stage_timer import StageTimer

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


@dataclass(eq=False)
class Batch:
    """A scored batch whose requests have not all finished.

    Attributes:
        fields: attributes of the span, without their prefix ``ranker.``.
        begin: ``time.monotonic()`` at its begin.
        end: ``time.monotonic()`` at its end.
        error: class name of the exception that failed the batch, or None.
        unfinished: number of its requests that have not finished.
        span: its span, once the span of a request was sampled.
    """

    fields: dict[str, Any]
    begin: float
    end: float
    error: str | None
    unfinished: int = 0
    span: Span | None = None


class BatchTracer:
    """Creates the spans of batches after the spans of their requests, which exist only when the requests have finished.

    A batch has a span if the span of at least one of its requests is sampled. The span is the root of a trace, and it
    and the spans of the sampled requests are linked to each other.

    Args:
        tracer: creates the spans; samples all of them.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._lock = threading.Lock()  # guards _batches and the numbers of unfinished requests
        self._batches: WeakKeyDictionary[StageTimer, list[Batch]] = WeakKeyDictionary()

    def request_started(self, timer: StageTimer) -> None:
        """Expect the end of a request.

        Args:
            timer: stage timer of the request.
        """
        with self._lock:
            self._batches[timer] = []

    @contextmanager
    def batch(self, timers: Sequence[StageTimer], **fields: Any) -> Iterator[None]:
        """Record a batch that is scored in this context; spans are created later.

        Args:
            timers: stage timers of its requests. Requests that were not announced, or whose clients disconnect before
                the batch ends, are not linked.
            fields: attributes of the span, without their prefix ``ranker.``.
        """
        begin, error = time.monotonic(), None
        try:
            yield
        except Exception as exception:
            error = type(exception).__qualname__
            raise
        finally:
            batch = Batch(fields, begin, time.monotonic(), error)
            with self._lock:
                for timer in timers:
                    if timer in self._batches:
                        self._batches[timer].append(batch)
                        batch.unfinished += 1

    def request_finished(self, timer: StageTimer, span: Span) -> None:
        """Link the span of a request with the spans of its batches, and end those whose requests have all finished.

        Args:
            timer: stage timer of the request.
            span: span of the request, not ended.
        """
        with self._lock:
            batches = self._batches.pop(timer, [])
            for batch in batches:
                batch.unfinished -= 1
        for batch in batches:
            if span.is_recording():
                batch.span = batch.span or self._start(batch)
                batch.span.add_link(span.get_span_context())
                span.add_link(batch.span.get_span_context())
            if batch.span is not None and not batch.unfinished:
                batch.span.end(to_unix_nanoseconds(batch.end))

    def _start(self, batch: Batch) -> Span:
        from opentelemetry.context import Context
        from opentelemetry.trace import StatusCode

        attributes = {f"ranker.{name}": value for name, value in batch.fields.items()}
        if batch.error is not None:
            attributes["error.type"] = batch.error
        begin = to_unix_nanoseconds(batch.begin)
        span = self._tracer.start_span("batch", Context(), attributes=attributes, start_time=begin)
        if batch.error is not None:
            span.set_status(StatusCode.ERROR)
        return span


def to_unix_nanoseconds(monotonic: float) -> int:
    """Convert a time of ``time.monotonic()`` to nanoseconds since 1970."""
    return int((time.time() - time.monotonic() + monotonic) * 1e9)
