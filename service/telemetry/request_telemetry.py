"""What is told of a ranking request once it is answered: counts, a line if it was slow, a trace if traces are kept."""

from __future__ import annotations

import logging
import time

from starlette.types import Scope

from service.telemetry.metrics import Metrics
from service.telemetry.request_info import RequestInfo, request_fields
from service.telemetry.stage_timer import StageTimer
from service.telemetry.tracing import Traces

log = logging.getLogger("ranker.slow")


class RequestTelemetry:
    """Told of each ranking request when it arrives and when it has been answered.

    Args:
        metrics: where it is counted.
        slow_ms: a request that took longer is logged, with its stages.
        traces: where its spans go; None: nowhere.
    """

    def __init__(self, metrics: Metrics, slow_ms: float, traces: Traces | None = None) -> None:
        self._metrics, self._slow_ms, self._traces = metrics, slow_ms, traces

    def arrived(self) -> None:
        """A request is being worked on from now."""
        self._metrics.in_flight.inc()

    def answered(self, scope: Scope, status: int) -> None:
        """A request has been answered; its state holds its ``stages``, and its ``subject`` once that is known."""
        now = time.monotonic()
        stages: StageTimer = scope["state"]["stages"]
        subject: RequestInfo | None = scope["state"].get("subject")
        seconds = stages.seconds()
        taken = now - stages.arrived
        self._metrics.in_flight.dec()
        self._metrics.answered(status, subject.model if subject else "", taken, seconds)
        if taken * 1000 > self._slow_ms:
            times = {stage: round(each * 1000, 3) for stage, each in seconds.items()}
            told = {"milliseconds": round(taken * 1000, 3), "stages": times}
            log.warning("slow request", extra=request_fields(scope, status) | told)
        if self._traces is not None:
            self._traces.record(scope, status, stages, now)
