"""Clients that wish a service ill, a process of their own: ``python -m pipelines.bench.attacks NAME PORT``.

It says when it has begun, and goes on until it is killed.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress

from pipelines.bench.load import HOST, PATH

PATIENCE = 30.0
"""Seconds that an attacker waits for a connection, or for a byte."""
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n".encode()
EMPTY = b"\r\n"

Attack = Callable[[int], Generator[None, None, None]]
"""Port → rounds without end."""


def idle(port: int) -> Generator[None, None, None]:
    """A thousand connections that ask nothing."""
    with ExitStack() as stack:
        for _ in range(1_000):
            stack.enter_context(_connection(port))
        while True:
            yield
            time.sleep(1.0)


def slow(port: int) -> Generator[None, None, None]:
    """Heads and bodies that come byte by byte on two hundred connections."""
    with ExitStack() as stack:
        connections = [stack.enter_context(_connection(port)) for _ in range(200)]
        for place, connection in enumerate(connections):
            connection.sendall(HEAD if place % 2 else HEAD + EMPTY)
        while True:
            for connection in connections:
                with suppress(OSError):  # it was refused
                    connection.sendall(b"x")
            yield
            time.sleep(0.5)


def large(port: int) -> Generator[None, None, None]:
    """Headers of a megabyte."""
    while True:
        with suppress(OSError), _connection(port) as connection:
            connection.sendall(HEAD + b"X: " + b"a" * 1_000_000)
        yield
        time.sleep(0.02)


def leaving(port: int) -> Generator[None, None, None]:
    """Bodies of which half comes, and then the end: of both directions, or of one."""
    both = False
    while True:
        both = not both
        with suppress(OSError), _connection(port) as connection:
            connection.sendall(HEAD + EMPTY + b" " * 4_000)
            if not both:
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)
        yield
        time.sleep(0.02)


ATTACKS: dict[str, Attack] = {
    "1,000 idle connections": idle,
    "200 that come byte by byte": slow,
    "headers of a megabyte": large,
    "bodies that end half-way": leaving,
}


def _connection(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=PATIENCE)


def main(name: str, port: str) -> None:
    """Attacks."""
    rounds = ATTACKS[name](int(port))
    next(rounds)
    print("begun", flush=True)
    for _ in rounds:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
