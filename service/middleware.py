"""Around every request: its id and trace, its size limit, its stages, and its count in the metrics."""

from __future__ import annotations

import random
import re
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.incoming import Incoming
from service.metrics import Metrics
from service.stages import Stages

REJECTIONS = {408: "slow_body", 413: "too_large", 429: "queue_full", 504: "deadline"}
"""Status of a ranking request → why it was turned away."""
SAFE_ID = re.compile(rb"[\x21-\x7e]{1,256}")


class Envelope:
    """Pure ASGI middleware, so that nothing is copied on the way.

    Args:
        app: what it wraps.
        metrics: where ranking requests are counted.
        max_body_bytes: larger bodies are refused with 413, at the first byte too many.
        read_seconds: bodies that take longer are refused with 408.
        server_timing: whether answers name the stages of a ranking request and their times.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, max_body_bytes: int, read_seconds: float, *, server_timing: bool = False
    ) -> None:
        self._app, self._metrics = app, metrics
        self._max_body_bytes, self._read_seconds = max_body_bytes, read_seconds
        self._server_timing = server_timing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request; passes anything but HTTP through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given if SAFE_ID.fullmatch(given) else b"%032x" % random.getrandbits(128)
        stages = Stages()
        scope.setdefault("state", {}).update(request_id=request_id.decode(), stages=stages)
        status = 500
        incoming = Incoming(receive, self._max_body_bytes, self._read_seconds)

        async def echoing(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                echo = message["headers"]
                echo.append((b"x-request-id", request_id))
                if b"traceparent" in headers:
                    echo.append((b"traceparent", headers[b"traceparent"]))
                if self._server_timing and (times := stages.header()):
                    echo.append((b"server-timing", times.encode()))
            await send(message)

        if not scope["path"].endswith("/rank"):
            await self._app(scope, incoming, echoing)
            return
        try:
            with self._metrics.in_flight.track_inprogress():
                await self._app(scope, incoming, echoing)
        finally:
            self._metrics.requests.labels(str(status)).inc()
            if status in REJECTIONS:
                self._metrics.rejections.labels(REJECTIONS[status]).inc()
            self._metrics.seconds.observe(time.monotonic() - stages.arrived)
