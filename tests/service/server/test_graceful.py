"""``GracefulServer``: the number of connections that the event loop accepts per iteration."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn

from service.server.graceful import ACCEPTS_PER_ITERATION, GracefulServer
from tests.support.ports import HOST
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

CONNECTIONS = 4 * ACCEPTS_PER_ITERATION


class IterationCounter:
    """Counts the iterations of an event loop, and records in which one each connection is accepted."""

    def __init__(self) -> None:
        self.iteration, self.accepted = 0, list[int]()
        self.connected = threading.Event()  # until all clients have connected, the first one blocks the event loop

    def count(self, loop: asyncio.AbstractEventLoop) -> None:
        self.iteration += 1
        loop.call_soon(self.count, loop)

    def create_protocol(self, **_options: Any) -> asyncio.Protocol:
        counter = self

        class RecordingProtocol(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                if not counter.accepted:
                    counter.count(asyncio.get_running_loop())
                    assert counter.connected.wait(TIMEOUT_SECONDS)
                counter.accepted.append(counter.iteration)

        return RecordingProtocol()


class RecordingSocket(socket.socket):
    """Records whether the socket or a duplicate of it is ever blocking."""

    modes: list[bool]

    def setblocking(self, flag: bool) -> None:
        self.modes.append(flag)
        super().setblocking(flag)

    def settimeout(self, value: float | None) -> None:
        self.modes.append(value != 0.0)
        super().settimeout(value)


def test_event_loop_accepts_several_connections_per_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = IterationCounter()
    app: Any = None  # the clients send no requests
    create_protocol: Any = counter.create_protocol
    config = uvicorn.Config(app, http=create_protocol, lifespan="off", log_config=None, loop="uvloop")
    monkeypatch.setattr(RecordingSocket, "modes", modes := list[bool](), raising=False)
    listener = RecordingSocket()
    listener.bind((HOST, 0))
    listener.listen(CONNECTIONS)
    server = GracefulServer(config, drain_seconds=0.0)
    thread = threading.Thread(target=server.run, args=[[listener]])
    address = listener.getsockname()
    thread.start()
    try:
        with ExitStack() as stack:
            for _ in range(CONNECTIONS):
                stack.enter_context(socket.create_connection(address))
            counter.connected.set()
            wait_until(lambda: len(counter.accepted) == CONNECTIONS)
    finally:
        server.should_exit = True
        thread.join()
    per_iteration = [counter.accepted.count(iteration) for iteration in set(counter.accepted)]
    assert max(per_iteration) <= ACCEPTS_PER_ITERATION
    assert len(per_iteration) <= CONNECTIONS // ACCEPTS_PER_ITERATION + 2
    assert modes
    assert not any(modes), "a blocking socket would block the event loops of other processes, too"
