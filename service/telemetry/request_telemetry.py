"""Metrics, slow-request log and trace of a request, recorded after its response is sent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from starlette.types import Scope

from service.telemetry.metrics import Metrics
from service.telemetry.stage_timer import StageTimer
from service.telemetry.tracing import RequestTracer

log = logging.getLogger("ranker.service")
slow_log = logging.getLogger("ranker.slow")


class RequestTelemetry:
    """Records requests.

    Args:
        metrics: metrics of the service.
        slow_ms: requests slower than this many milliseconds are logged with the time of each stage.
        tracer: sends a trace of each request, or None to send no traces.
    """

    def __init__(self, metrics: Metrics, slow_ms: float, tracer: RequestTracer | None = None) -> None:
        self._metrics, self._slow_ms, self._tracer = metrics, slow_ms, tracer
        self._failed = False

    def request_started(self, timer: StageTimer) -> None:
        """Record that a ranking request arrived.

        Args:
            timer: stage timer of the request.
        """
        self._metrics.in_flight.inc()
        if self._tracer is not None:
            self._tracer.batches.request_started(timer)

    def request_finished(self, scope: Scope, status: int) -> None:
        """Record that the response of a ranking request was sent. Failures never reach the request.

        Args:
            scope: ASGI scope of the request; its state holds the ``timer`` and, if known, the ``request_info`` and the
                reason of a ``rejection`` that the status does not imply. The info consists of fields for logs and
                traces, without user ids, item ids and keys.
            status: status code of the response.
        """
        self._record_safely(self._record_request, scope, status)

    def feedback_finished(self, scope: Scope, status: int) -> None:
        """Record that the response of a feedback request was sent; see ``request_finished`` for the arguments."""
        self._record_safely(self._record_feedback, scope, status)

    def _record_safely(self, record: Callable[[Scope, int], None], scope: Scope, status: int) -> None:
        try:
            record(scope, status)
        except Exception:
            if not self._failed:
                log.exception("the telemetry of a request failed; further failures are not logged")
            self._failed = True

    def _record_request(self, scope: Scope, status: int) -> None:
        now = time.monotonic()
        timer: StageTimer = scope["state"]["timer"]
        fields: dict[str, Any] = scope["state"].get("request_info", {})
        stages = timer.seconds()
        seconds = now - timer.arrived
        self._metrics.in_flight.dec()
        rejection = scope["state"].get("rejection")
        self._metrics.record_request(status, fields.get("model", ""), seconds, stages, rejection)
        slow = seconds * 1000 > self._slow_ms
        if not slow and self._tracer is None:
            return
        if slow:
            milliseconds = {stage: round(duration * 1000, 3) for stage, duration in stages.items()}
            times = {"milliseconds": round(seconds * 1000, 3), "stages": milliseconds}
            slow_log.warning("slow request", extra={"status": status, **fields, **times})
        if self._tracer is not None:
            self._tracer.record(scope, status, fields, timer, now)

    def _record_feedback(self, scope: Scope, status: int) -> None:
        self._metrics.record_feedback_request(status, scope["state"].get("rejection"))
