"""TCP ports of the loopback interface for tests."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

HOST = "127.0.0.1"


def free_port() -> int:
    """A port that nothing listens on."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Distinct ports that nothing listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for unused in sockets:
            unused.bind((HOST, 0))
        return [int(unused.getsockname()[1]) for unused in sockets]


@contextmanager
def occupied_port() -> Iterator[int]:
    """A port with a listener that accepts no connection and never responds."""
    with socket.create_server((HOST, 0)) as listener:
        yield int(listener.getsockname()[1])
