"""Attacking clients, run as their own process: ``python -m pipelines.bench.attacks NAME PORT``.

The process prints a line when the attack has started and continues until it is killed.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress

from pipelines.bench.load import HOST, PATH

TIMEOUT_SECONDS = 30.0
"""Seconds that an attacker waits for a connection or for a byte."""
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n".encode()
END_OF_HEAD = b"\r\n"

Attack = Callable[[int], Generator[None, None, None]]
"""Port → endless iterator; each step is a round of the attack."""


def idle_connections(port: int) -> Generator[None, None, None]:
    """Hold 1,000 connections open without sending a request."""
    with ExitStack() as stack:
        for _ in range(1_000):
            stack.enter_context(_connect(port))
        while True:
            yield
            time.sleep(1.0)


def slow_requests(port: int) -> Generator[None, None, None]:
    """Send heads and bodies byte by byte on 200 connections."""
    with ExitStack() as stack:
        connections = [stack.enter_context(_connect(port)) for _ in range(200)]
        for index, connection in enumerate(connections):
            connection.sendall(HEAD if index % 2 else HEAD + END_OF_HEAD)
        while True:
            for connection in connections:
                with suppress(OSError):  # The service has closed the connection.
                    connection.sendall(b"x")
            yield
            time.sleep(0.5)


def large_headers(port: int) -> Generator[None, None, None]:
    """Send headers of one megabyte."""
    while True:
        with suppress(OSError), _connect(port) as connection:
            connection.sendall(HEAD + b"X: " + b"a" * 1_000_000)
        yield
        time.sleep(0.02)


def truncated_bodies(port: int) -> Generator[None, None, None]:
    """Send half of a body, then close both directions and one direction alternately."""
    close_both = False
    while True:
        close_both = not close_both
        with suppress(OSError), _connect(port) as connection:
            connection.sendall(HEAD + END_OF_HEAD + b" " * 4_000)
            if not close_both:
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)
        yield
        time.sleep(0.02)


ATTACKS: dict[str, Attack] = {
    "1,000 idle connections": idle_connections,
    "200 connections sending byte by byte": slow_requests,
    "headers of 1 MB": large_headers,
    "truncated bodies": truncated_bodies,
}


def _connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=TIMEOUT_SECONDS)


def main(name: str, port: str) -> None:
    """Run an attack until the process is killed."""
    rounds = ATTACKS[name](int(port))
    next(rounds)
    print("started", flush=True)
    for _ in rounds:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
