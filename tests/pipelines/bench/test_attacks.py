"""Attackers do what their names say."""

from __future__ import annotations

import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from pipelines.bench.attacks import ATTACKS, EMPTY, HEAD


class Victim(socketserver.ThreadingTCPServer):
    """Keeps what each connection sends, until it ends."""

    daemon_threads, request_queue_size = True, 2_000

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Reader)
        self.received: list[bytearray] = []
        self.changed = threading.Condition()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def until(self, connections: int, size: int) -> list[bytes]:
        """What came, once so many connections have sent so much in all."""
        with self.changed:
            assert self.changed.wait_for(
                lambda: len(self.received) >= connections and sum(map(len, self.received)) >= size, timeout=60
            ), (len(self.received), sum(map(len, self.received)))
            return list(map(bytes, self.received))


class Reader(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        victim: Any = self.server
        mine = bytearray()
        with victim.changed:
            victim.received.append(mine)
            victim.changed.notify()
        while piece := self.request.recv(65_536):
            with victim.changed:
                mine += piece
                victim.changed.notify()


@pytest.fixture
def victim() -> Iterator[Victim]:
    with Victim() as victim:
        threading.Thread(target=victim.serve_forever, daemon=True).start()
        yield victim
        victim.shutdown()


def test_idle_connections_are_there_and_silent(victim: Victim) -> None:
    with closing(ATTACKS["1,000 idle connections"](victim.port)) as rounds:
        next(rounds)
        assert victim.until(1_000, 0) == [b""] * 1_000


def test_heads_and_bodies_come_byte_by_byte(victim: Victim) -> None:
    with closing(ATTACKS["200 that come byte by byte"](victim.port)) as rounds:
        next(rounds)
        victim.until(200, 200 * len(HEAD))
        next(rounds)
        texts = victim.until(200, 200 * (len(HEAD) + 2) + 100 * len(EMPTY))
    heads = [text for text in texts if b"\r\n\r\n" not in text]
    assert len(texts) == 200
    assert len(heads) == 100


def test_headers_are_large(victim: Victim) -> None:
    next(ATTACKS["headers of a megabyte"](victim.port))
    (text,) = victim.until(1, 1_000_000)
    assert b"\r\n\r\n" not in text


def test_bodies_end_half_way(victim: Victim) -> None:
    rounds = ATTACKS["bodies that end half-way"](victim.port)
    next(rounds)
    next(rounds)
    for text in victim.until(2, 8_000):
        head, body = text.split(b"\r\n\r\n")
        assert b"Content-Length: 9000" in head
        assert len(body) == 4_000


def test_a_process_says_that_it_has_begun_and_goes_on(victim: Victim) -> None:
    command = [sys.executable, "-m", "pipelines.bench.attacks", "headers of a megabyte", str(victim.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attack:
        assert attack.stdout is not None
        assert attack.stdout.readline() == "begun\n"
        victim.until(3, 2_000_000)
        attack.kill()
