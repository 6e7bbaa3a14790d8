"""Attacking clients, run as their own process: ``python -m benchmarks.serving.attacks NAME PORT [CLIENTS]``.

The process prints a line when the attack has started and continues until it is killed.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress

from pipelines.bench.connection import CONTENT_LENGTH
from pipelines.bench.load import HOST, PATH

TIMEOUT_SECONDS = 30.0
"""Seconds that an attacker waits for a connection or for a byte."""
HEAD = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n".encode()
END_OF_HEAD = b"\r\n"
LARGE_BODIES, LARGE_BODY_BYTES = 250, 8_000_000
"""Number and announced size of the bodies that ``arriving_bodies`` sends."""
RETRIES = "2,500 clients that retry at once"
"""Name of the attack by clients without back-off; the service must reject other clients, too."""
FLOOD = "feedback as fast as possible"
"""Name of the attack by clients whose feedback the service accepts."""
RETRYING_CLIENTS, RETRY_CANDIDATES = 2_500, 10
"""Default number of these clients, and the candidates of each of their requests."""
FLOOD_CLIENTS, FLOOD_EVENTS = 16, 100
"""Connections of the flood of feedback, and the events of each of its requests."""
FEEDBACK_PATH = "/v1/feedback"

Attack = Callable[..., Generator[None, None, None]]
"""Port and, for some attacks, number of clients → endless iterator; each step is a round of the attack."""


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


def arriving_bodies(
    port: int, connections: int = LARGE_BODIES, path: str = PATH, headers: bytes = b""
) -> Generator[None, None, None]:
    """Send all but the last bytes of large bodies, as fast as the service reads them; start again when rejected.

    Args:
        port: port of the service.
        connections: number of bodies at a time.
        path: path of the requests.
        headers: further header lines of the requests.
    """
    head = HEAD.replace(b"9000", b"%d" % LARGE_BODY_BYTES).replace(PATH.encode(), path.encode())
    head += headers + END_OF_HEAD
    piece = memoryview(b" " * 262_144)
    unsent: dict[socket.socket, int] = {}
    try:
        while True:
            for _ in range(connections - len(unsent)):
                with suppress(OSError):
                    connection = _connect(port)
                    connection.sendall(head)
                    connection.setblocking(False)
                    unsent[connection] = LARGE_BODY_BYTES - 1_000
            for connection, size in list(unsent.items()):
                try:
                    with suppress(BlockingIOError):
                        unsent[connection] = size - connection.send(piece[:size])
                    connection.recv(65_536)  # A response, or the end of the connection.
                except BlockingIOError:
                    continue
                except OSError:
                    pass
                connection.close()
                del unsent[connection]
            yield
            time.sleep(0.02)
    finally:
        for connection in unsent:
            connection.close()


def retries_without_backoff(port: int, clients: int = RETRYING_CLIENTS) -> Generator[None, None, None]:
    """Send the next request as soon as the response to the last one has arrived, also after a 429."""
    body = {"items": {"id": [str(item) for item in range(RETRY_CANDIDATES)]}}
    return _send_without_pauses(port, PATH, body, clients)


def feedback_flood(port: int) -> Generator[None, None, None]:
    """Send feedback with many events over a few connections, as fast as the service responds."""
    events = [{"item": str(item), "labels": {"click": 1.0}} for item in range(FLOOD_EVENTS)]
    return _send_without_pauses(port, FEEDBACK_PATH, {"request_id": "r-1", "events": events}, FLOOD_CLIENTS)


def _send_without_pauses(port: int, path: str, content: object, clients: int) -> Generator[None, None, None]:
    """Send a request over each of several connections, and again after each response.

    The first round only connects.
    """
    body = json.dumps(content).encode()
    head = HEAD.replace(b"9000", b"%d" % len(body)).replace(PATH.encode(), path.encode())
    request = head + END_OF_HEAD + body
    _allow_files(clients + 100)
    poll, connections = select.epoll(), dict[int, socket.socket]()
    received: dict[int, bytes] = {}

    def open_connection() -> socket.socket:
        connection = _connect(port)
        connections[connection.fileno()] = connection
        poll.register(connection.fileno(), select.EPOLLIN)
        return connection

    for _ in range(clients):
        open_connection()
    yield
    for connection in connections.values():
        with suppress(OSError):  # The loop below replaces connections that are closed.
            connection.sendall(request)
    while True:
        for number, _ in poll.poll(1.0):
            connection = connections[number]
            try:
                data = received.pop(number, b"") + (piece := connection.recv(65_536))
                if piece and not _is_complete(data):
                    received[number] = data
                    continue
                if piece:
                    connection.sendall(request)
                    continue
            except OSError:
                pass
            del connections[number]
            connection.close()
            with suppress(OSError):
                open_connection().sendall(request)
        yield


ATTACKS: dict[str, Attack] = {
    "1,000 idle connections": idle_connections,
    "200 connections sending byte by byte": slow_requests,
    "headers of 1 MB": large_headers,
    "truncated bodies": truncated_bodies,
    "250 bodies of 8 MB that never end": arriving_bodies,
    FLOOD: feedback_flood,
    RETRIES: retries_without_backoff,
}


def _connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=TIMEOUT_SECONDS)


def _is_complete(response: bytes) -> bool:
    end = response.find(b"\r\n\r\n")
    length = CONTENT_LENGTH.search(response, 0, max(end, 0))
    return length is not None and len(response) >= end + 4 + int(length[1])


def _allow_files(count: int) -> None:
    """Raise the limit on open files of this process; 1,024 is a common default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def main(name: str, *numbers: str) -> None:
    """Run an attack until the process is killed."""
    rounds = ATTACKS[name](*map(int, numbers))
    next(rounds)
    print("started", flush=True)
    for _ in rounds:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
