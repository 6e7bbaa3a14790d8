"""HTTP/1.1 connections with limits, and a rejection that costs little enough to keep capacity for admitted requests.

uvicorn's protocol limits neither the size of headers, nor the duration of requests and responses, nor the number of
connections. Starting the application for a request costs several times as much as rejecting the request here.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Any, Literal

import httptools
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ranking.errors import RankerError
from service.engine.admission import Permit
from service.engine.errors import QueueFullError
from service.protocol.headers import is_rank_path
from service.protocol.problems import Problem, unavailable
from service.server.body_budget import LEASE, BodyLease
from service.server.context import STATE_KEY, ServerContext, StaticResponse
from service.server.pacing import EARLY_SECONDS

SUPPORTED_UVICORN = ">=0.51,<0.55"
"""Supported versions of uvicorn: ``LimitedHttpProtocol`` overrides a private method of its protocol."""
MAX_HEADER_BYTES = 32 * 1024
"""Maximum size of the request line and headers; larger ones are rejected with 431."""
HEADER_SECONDS = 5.0
"""Time limit for the headers, from the connection or their first byte; at most ``read_seconds``."""
LINGER_SECONDS = 1.0
"""Seconds between a rejection and the end of its connection.

A connection that is closed while the client still sends is reset, and the client may not see the response.
"""
SPARE_CONNECTIONS = 100
"""Connections above ``max_connections`` that still get a 503; any beyond that are closed immediately."""
CHUNKED_FACTOR = 2
"""Maximum ratio between the bytes of a chunked body on the wire and its content."""
MAX_EARLY_RETRIES = 20
"""Rejected requests in a row that a connection may send before ``Retry-After``; it is closed with the next one."""
TOO_MANY_REQUESTS = 429

Part = Literal["head", "body"]


def require_supported_uvicorn() -> None:
    """Check that the installed uvicorn calls the method that admits requests.

    Raises:
        RankerError: it does not; without that call no request would get a permit.
    """
    if not hasattr(HttpToolsProtocol, "_start_asgi_task"):
        raise RankerError(f"uvicorn {uvicorn.__version__} is not supported: install uvicorn{SUPPORTED_UVICORN}")


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits; the application must be one of ``create_app``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._context: ServerContext = self.app_state[STATE_KEY]
        self._limits = self._context.settings
        self._header_seconds = min(HEADER_SECONDS, self._limits.read_seconds)
        self._part: Part | None = None  # part of the current request that is incomplete
        self._segment_bytes = 0  # size of the segment being parsed; 0 once a request has ended in it
        self._request_bytes = 0  # bytes received of the current request
        self._reading: Permit | None = None  # permit of the request that is being read
        self._started: Permit | None = None  # permit of the request that was started last
        self._running: RequestResponseCycle | None = None  # request that was started last
        self._lease: BodyLease | None = None  # bytes of the body that is being read
        self._rejected_at = -math.inf  # time of the last 429
        self._early_retries = 0  # rejected requests since the last admitted one that came before Retry-After
        self._responded_at = -math.inf  # time of the last response
        self._pause_timer: asyncio.TimerHandle | None = None
        self._closing = False  # whether further data is discarded
        self._read_timer: asyncio.TimerHandle | None = None
        self._awaited: Part | None = None  # part that the read timer bounds
        self._write_timer: asyncio.TimerHandle | None = None

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Apply the limit on connections and start the timeout of the first request."""
        super().connection_made(transport)
        limit = self._limits.max_connections
        if len(self.connections) > limit + SPARE_CONNECTIONS:
            transport.abort()
        elif len(self.connections) > limit:
            self._reject_and_close(unavailable(f"the limit of {limit} connections is reached"), "connections")
        else:
            self._set_read_timer("head", self._header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the work of the connection and its timers."""
        if self._started is not None:
            self._started.cancel()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True  # uvicorn marks only the last of several pipelined requests
            self._running.message_event.set()
        for cycle, _ in self.pipeline:
            if (lease := cycle.scope["state"].get(LEASE)) is not None:
                lease.release()
        self.pipeline.clear()
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        self._set_read_timer(None)
        self._set_write_timer(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received data and apply the limits on incomplete requests."""
        if self._closing:
            return
        self._unset_keepalive_if_required()
        self._segment_bytes = len(data)
        self._request_bytes += self._segment_bytes
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the service offers no protocol to upgrade to
        except httptools.HttpParserError:
            if not self._closing:
                self._reject_and_close(Problem(400, "this is not an HTTP/1.1 request"), "malformed")
        if self._part is not None and not self._closing:
            self._check_incomplete_request(self._part)

    def pause_writing(self) -> None:
        """Bound the time in which the client must read its response."""
        super().pause_writing()
        self._set_write_timer(self._limits.read_seconds)

    def resume_writing(self) -> None:
        """Cancel the timeout of ``pause_writing``."""
        self._set_write_timer(None)
        super().resume_writing()

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        """Reset the state of the current request."""
        self._part, self._request_bytes, self._reading, self._lease = "head", self._segment_bytes, None, None
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Reject invalid headers, and requests above the limits on admission and bodies; else start the application."""
        if self._request_bytes > MAX_HEADER_BYTES:  # includes data after the headers
            size = len(self.url) + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)
            if size > MAX_HEADER_BYTES:
                self._reject_large_headers()
                raise RuntimeError("rejected")  # stops the parser
        hosts = body_bytes = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                body_bytes = int(value)
            elif name == b"transfer-encoding":
                body_bytes = 1  # unknown
        if hosts != 1 and (hosts or self.parser.get_http_version() == "1.1"):
            reason = f"the request has {hosts or 'no'} Host header{'s' * (hosts > 1)}: send exactly one"
            self._reject_and_close(Problem(400, reason), "malformed")
            raise RuntimeError("rejected")  # stops the parser
        self._part = "body"
        if self._context.rejects(self.url, busy=self._busy) and self._all_answered():
            self._reject_request(self._context.queue_full.to(self.url), "queue_full")
            return
        if body_bytes:
            fits = min(body_bytes, self._limits.max_body_bytes)  # the gateway rejects larger bodies with 413
            if not self._context.bodies.can_hold(fits) and self._all_answered():
                self._reject_request(self._context.bodies_full.to(self.url), "body_memory")
                return
            self._lease = self.scope["state"][LEASE] = BodyLease(self._context.bodies)
        super().on_headers_complete()
        if self._lease is not None:
            self._lease.on_reject = partial(self._reject_body, self.cycle)

    def on_body(self, body: bytes) -> None:
        """Count the bytes of a body, and discard them if it is rejected."""
        if self._lease is None or self._lease.add(len(body)):
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the read timer and let the request count for admission again."""
        self._part, self._segment_bytes = None, 0
        if self._reading is not None:
            self._reading.resume()
        if self._lease is not None:
            self._lease.complete()
        if self._awaited is not None:
            self._set_read_timer(None)
        super().on_message_complete()
        if self.cycle.response_complete and self.timeout_keep_alive_task is None:
            timeout, handler = self.timeout_keep_alive, self.timeout_keep_alive_handler
            self.timeout_keep_alive_task = self.loop.call_later(timeout, handler)

    # Callbacks of uvicorn

    def on_response_complete(self) -> None:
        """Pace rejected requests, and bound the time in which the client must read the last response."""
        cycle = self._running
        assert cycle is not None
        cycle.body.clear()  # the application may respond before it has read the body
        self._responded_at = self.loop.time()
        super().on_response_complete()
        if self.transport.is_closing():
            if not self._closing:
                self._set_write_timer(self._limits.read_seconds)
        elif cycle.scope["state"].get("status") == TOO_MANY_REQUESTS:
            self._is_retrying_too_early()
            self._pause_reading()
        elif cycle.scope["state"].get("permit") is not None:
            self._early_retries = 0

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; abort it if the client has not read its last response."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Admit a request and start the application; all earlier requests of the connection are answered."""
        if self._context.lifecycle.draining:
            cycle.keep_alive = False
        self._running, lease = cycle, cycle.scope["state"].get(LEASE)
        if lease is not None:
            app = partial(_run_with_lease, lease, app)
        try:
            permit = self._context.admit(cycle.scope["path"], cycle.scope["state"], busy=self._busy)
        except QueueFullError:
            permit = None  # the application responds with 429
        if permit is None:
            super()._start_asgi_task(cycle, app)
            return
        self._started = permit
        if cycle is self.cycle:
            self._reading = permit
        app = partial(_run_with_permit, permit, app)
        self._context.start_pacer.submit(partial(super()._start_asgi_task, cycle, app), permit.rows)

    # Limits and rejections

    def _check_incomplete_request(self, part: Part) -> None:
        """Apply the limits on size and duration to a request that is still being received."""
        limits = self._limits
        if self._reading is not None:
            self._reading.suspend()
        if self._lease is not None:
            self._lease.wait_for_more()
        if part == "head" and self._request_bytes > MAX_HEADER_BYTES:
            self._reject_large_headers()
        elif self._request_bytes > CHUNKED_FACTOR * limits.max_body_bytes + MAX_HEADER_BYTES:
            self.transport.abort()  # the application has responded with 413, or the client sends only chunk overhead
        elif self._awaited != part:
            self._set_read_timer(part, self._header_seconds if part == "head" else limits.read_seconds)

    def _on_read_timeout(self) -> None:
        self._awaited = None
        if self._part == "head":
            reason = f"the headers took more than {self._header_seconds:g} s"
            self._reject_and_close(Problem(408, reason), "slow_headers")
        elif self._part is None or self.cycle.response_complete:
            self.transport.close()  # there is no request, or it is answered
        else:
            self._set_read_timer("body", self._limits.read_seconds)  # the gateway responds with 408

    def _reject_large_headers(self) -> None:
        reason = f"the headers are larger than {MAX_HEADER_BYTES} bytes"
        self._reject_and_close(Problem(431, reason), "large_headers")

    def _reject_and_close(self, problem: Problem, reason: str) -> None:
        """Respond in place of the application and end the connection."""
        self._context.metrics.rejections.labels(reason).inc()
        if not self._all_answered():
            self.transport.abort()  # the client would take this response for that of an earlier request
            return
        static = StaticResponse(problem)
        self.transport.write(static.to_bytes(self.server_state.default_headers, self.headers or (), close=True))
        self._stop_reading()

    def _reject_request(self, response: StaticResponse, reason: str) -> None:
        """Respond with 429 in place of the application and keep the connection open if the client allows it."""
        self._context.count_rejection(reason, self.url)
        close = (
            not self.parser.should_keep_alive()
            or self._context.lifecycle.draining
            or self.expect_100_continue  # whether the body follows is unknown
            or self._is_retrying_too_early()
        )
        self.cycle = COMPLETED_CYCLE
        self.transport.write(response.to_bytes(self.server_state.default_headers, self.headers, close=close))
        if close:
            self._stop_reading()
        else:
            self._pause_reading()

    @property
    def _busy(self) -> bool:
        """Whether the last response was sent so recently that the client has not waited since."""
        return self.loop.time() < self._responded_at + EARLY_SECONDS

    def _is_retrying_too_early(self) -> bool:
        """Record a rejection; return whether the client keeps retrying before ``Retry-After``.

        A client that waits is never counted: pauses of the connection are shorter than ``EARLY_SECONDS``.
        """
        now = self.loop.time()
        if now < self._rejected_at + EARLY_SECONDS:
            self._early_retries += 1
        self._rejected_at = self._responded_at = now
        return self._early_retries > MAX_EARLY_RETRIES

    def _pause_reading(self) -> None:
        """Leave the next request of a rejected connection unread for a while."""
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        seconds = self._context.rejection_pacer.next_pause(self.loop.time())
        self.flow.pause_reading()
        self._pause_timer = self.loop.call_later(seconds, self._resume_reading)

    def _resume_reading(self) -> None:
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def _reject_body(self, cycle: RequestResponseCycle) -> None:
        """Make the application respond with 429 to a request whose body does not fit into the budget."""
        cycle.scope["state"]["rejection"] = "body_memory"
        if not is_rank_path(cycle.scope["path"]):  # telemetry counts only the rejections of rank requests
            self._context.metrics.rejections.labels("body_memory").inc()
        cycle.body.clear()
        cycle.message_event.set()  # the gateway sees that the lease is rejected

    def _all_answered(self) -> bool:
        """Whether every request of this connection has been answered."""
        return self.cycle is None or self.cycle.response_complete

    def _stop_reading(self) -> None:
        """Discard further data; abort the connection after the client had time to read the response."""
        self._closing = True
        self._set_read_timer(None)
        self.transport.write_eof()
        self._set_write_timer(LINGER_SECONDS)

    def _set_read_timer(self, part: Part | None, seconds: float = 0.0) -> None:
        """Bound the time until this part of a request is complete; None: no bound."""
        if self._read_timer is not None:
            self._read_timer.cancel()
        self._awaited = part
        self._read_timer = None if part is None else self.loop.call_later(seconds, self._on_read_timeout)

    def _set_write_timer(self, seconds: float | None) -> None:
        """Bound the time until the client has read what was written; None: no bound."""
        if self._write_timer is not None:
            self._write_timer.cancel()
        self._write_timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


class _CompletedCycle:
    """Stands for uvicorn's cycle of a request that was rejected without one."""

    response_complete = True
    message_event = asyncio.Event()


COMPLETED_CYCLE: Any = _CompletedCycle()


async def _run_with_lease(lease: BodyLease, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the application and give back the bytes of the request's body."""
    try:
        await app(scope, receive, send)
    finally:
        lease.release()


async def _run_with_permit(permit: Permit, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the application and release the permit of the request."""
    try:
        await app(scope, receive, send)
    finally:
        permit.release()
