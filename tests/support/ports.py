"""TCP ports of the loopback interface for tests."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

HOST = "127.0.0.1"


def free_port() -> int:
    """Reserve a port, on which nothing listens, until this process ends.

    The port stays bound to a socket of this process, so that the system assigns it to nobody else. A server that sets
    ``SO_REUSEADDR``, as servers do, can listen on it, because the socket has the option and does not listen. The socket
    gets the option after it is bound: with it, two test processes could hold the same port.
    """
    holder = socket.socket()
    holder.bind((HOST, 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port = int(holder.getsockname()[1])
    holder.detach()  # the descriptor stays open
    return port


@contextmanager
def occupied_port() -> Iterator[int]:
    """A port with a listener that accepts no connection and never responds."""
    with socket.create_server((HOST, 0)) as listener:
        yield int(listener.getsockname()[1])
