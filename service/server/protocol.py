"""One connection: its limits, and refusals so cheap that any number of them leaves time for what was admitted.

uvicorn's protocol bounds neither the size of headers, nor the time that requests and answers take, nor how many clients
connect; and what it starts for each request costs several times what refusing one here does.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Literal

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.engine.admission import Permit
from service.protocol.problems import Problem, unavailable
from service.server.context import ServerContext, StaticResponse

LINGER_SECONDS = 1.0
"""Between a refusal and the end of its connection: one that ends while the client still writes is reset, and the client
may not see why."""
SPARE_CONNECTIONS = 100
"""Beyond the limit, that are told so; even more are closed without a word."""
RANK = b"/rank"
"""How the paths end of the operations that admission is for."""
CHUNKED = 2
"""A body in chunks may take so many times its bytes."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits; it serves applications of ``create_app``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._entrance: ServerContext = self.app_state["entrance"]
        self._limits = self._entrance.settings
        self._part: Literal["head", "body"] | None = None  # of a request, that has begun to come
        self._segment = 0  # bytes that are being parsed; 0 if an earlier request ended among them
        self._received = 0  # bytes of the request so far
        self._ticket: Permit | None = None  # of the request that is being read
        self._working: Permit | None = None  # of the request that was begun last
        self._refused = False  # what still comes is not read
        self._coming: asyncio.TimerHandle | None = None  # runs out if a part does not come
        self._expected: Literal["head", "body"] | None = None  # that part
        self._leaving: asyncio.TimerHandle | None = None  # runs out if an answer is not taken

    # What asyncio calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        most = self._limits.max_connections
        if len(self.connections) > most + SPARE_CONNECTIONS:
            transport.abort()
        elif len(self.connections) > most:
            self._refuse(unavailable(f"{most} connections are open, which is as many as may be"), "connections")
        else:
            self._expect("head", self._limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        if self._working is not None:
            self._working.cancel()
        self._expect(None)
        self._let_leave(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some of a request, or of several."""
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._segment = len(data)
        self._received += self._segment
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # there is nothing to upgrade to
        except httptools.HttpParserError:
            if not self._refused:
                self._refuse(Problem(400, "this is no HTTP/1.1 request"), "malformed")
        if self._part is not None and not self._refused:
            self._require_small_and_soon(self._part)

    def pause_writing(self) -> None:
        """The client does not take its answer."""
        super().pause_writing()
        self._let_leave(self._limits.read_seconds)

    def resume_writing(self) -> None:
        """It does again."""
        self._let_leave(None)
        super().resume_writing()

    # What the parser calls

    def on_message_begin(self) -> None:
        """A request begins."""
        self._part, self._received, self._ticket = "head", self._segment, None
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """All its headers have come."""
        if self._received > self._limits.max_header_bytes:  # with whatever came after them
            size = len(self.url) + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)
            if size > self._limits.max_header_bytes:
                self._refuse_head()
                raise RuntimeError("refused")  # ends the parsing
        self._part = "body"
        if self.url.endswith(RANK) and self._entrance.admission.full and self._is_answered():
            self._refuse_one()
        else:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All of it has come."""
        self._part, self._segment = None, 0
        if self._ticket is not None:
            self._ticket.restore()
        if self._expected is not None:
            self._expect(None)
        super().on_message_complete()
        if self.cycle.response_complete and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    # What uvicorn calls

    def on_response_complete(self) -> None:
        """An answer is written."""
        super().on_response_complete()
        if self.transport.is_closing() and not self._refused:
            self._let_leave(self._limits.read_seconds)

    def timeout_keep_alive_handler(self) -> None:
        """Nothing was asked for long; who has not even taken the last answer will not."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """It is a request's turn: those before it in this connection are answered."""
        if self._entrance.lifecycle.draining:
            cycle.keep_alive = False
        if cycle.scope["path"].endswith("/rank") and (ticket := self._entrance.admission.try_acquire()):
            cycle.scope["state"]["ticket"] = ticket
            self._working = ticket
            if cycle is self.cycle:
                self._ticket = ticket
            app = partial(_admitted, ticket, app)
            self._entrance.start_pacer.submit(partial(super()._start_asgi_task, cycle, app), ticket.rows)
        else:  # or there is no room after all, which the application says
            super()._start_asgi_task(cycle, app)

    # What is refused

    def _require_small_and_soon(self, part: Literal["head", "body"]) -> None:
        """The rest of an incomplete request may come."""
        limits = self._limits
        if self._ticket is not None:
            self._ticket.suspend()
        if part == "head" and self._received > limits.max_header_bytes:
            self._refuse_head()
        elif self._received > CHUNKED * limits.max_body_bytes + limits.max_header_bytes:
            self.transport.abort()  # 413 was answered, or nothing but the overhead of chunks comes
        elif self._expected != part:
            self._expect(part, limits.header_seconds if part == "head" else limits.read_seconds)

    def _late(self) -> None:
        """A part of a request has not come."""
        self._expected = None
        if self._part == "head":
            self._refuse(Problem(408, f"the headers took more than {self._limits.header_seconds:g} s"), "slow_headers")
        elif self._part is None or self.cycle.response_complete:
            self.transport.close()  # nothing was asked, or it was answered already
        else:
            self._expect("body", self._limits.read_seconds)  # who reads the body answers 408

    def _refuse_head(self) -> None:
        reason = f"the headers are larger than {self._limits.max_header_bytes} bytes"
        self._refuse(Problem(431, reason), "large_headers")

    def _refuse(self, problem: Problem, reason: str) -> None:
        """Answers in place of the application and ends the connection."""
        self._entrance.metrics.rejections.labels(reason).inc()
        if not self._is_answered():
            self.transport.abort()  # an earlier request is not answered yet, so this would be taken for its answer
            return
        self.transport.write(
            StaticResponse(problem).text(self.server_state.default_headers, self.headers or (), last=True)
        )
        self._hang_up()

    def _refuse_one(self) -> None:
        """Answers 429 in place of the application, and goes on with the connection."""
        last = not self.parser.should_keep_alive() or self._entrance.lifecycle.draining
        self.cycle = ANSWERED
        self.transport.write(self._entrance.refusal(self.server_state.default_headers, self.headers, last=last))
        if last:
            self._hang_up()

    def _is_answered(self) -> bool:
        """Whether nothing that was asked in this connection waits for an answer."""
        return self.cycle is None or self.cycle.response_complete

    def _hang_up(self) -> None:
        """Nothing more is said or read; the client may read what it was told."""
        self._refused = True
        self._expect(None)
        self.transport.write_eof()
        self._let_leave(LINGER_SECONDS)

    def _expect(self, part: Literal["head", "body"] | None, seconds: float = 0.0) -> None:
        """From now on this part of a request has so many seconds to come."""
        if self._coming is not None:
            self._coming.cancel()
        self._expected = part
        self._coming = None if part is None else self.loop.call_later(seconds, self._late)

    def _let_leave(self, seconds: float | None) -> None:
        """From now on what was written has so many seconds to be taken."""
        if self._leaving is not None:
            self._leaving.cancel()
        self._leaving = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


class _Answered:
    """In place of uvicorn's cycle, of a request that never had one."""

    response_complete = True
    message_event = asyncio.Event()


ANSWERED: Any = _Answered()


async def _admitted(ticket: Permit, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """The application, for a request that has a ticket."""
    try:
        await app(scope, receive, send)
    finally:
        ticket.release()
