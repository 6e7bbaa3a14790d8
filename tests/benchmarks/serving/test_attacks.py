"""Tests of the attacking clients."""

from __future__ import annotations

import json
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from benchmarks.serving.attacks import (
    ATTACKS,
    END_OF_HEAD,
    FLOOD_CLIENTS,
    FLOOD_EVENTS,
    HEAD,
    LARGE_BODY_BYTES,
    RETRIES,
    RETRY_CANDIDATES,
    arriving_bodies,
)
from tests.support.waiting import wait_until


class RecordingServer(socketserver.ThreadingTCPServer):
    """Server that records the bytes of each connection."""

    daemon_threads, request_queue_size = True, 2_000

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ConnectionRecorder)
        self.received: list[bytearray] = []
        self.changed = threading.Condition()
        self.reply = b""

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def wait_for(self, connections: int, size: int) -> list[bytes]:
        """Wait until the connections have sent a number of bytes in total; return the bytes of each."""
        with self.changed:
            assert self.changed.wait_for(
                lambda: len(self.received) >= connections and sum(map(len, self.received)) >= size, timeout=60
            ), (len(self.received), sum(map(len, self.received)))
            return list(map(bytes, self.received))


class ConnectionRecorder(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        server: Any = self.server
        received = bytearray()
        with server.changed:
            server.received.append(received)
            server.changed.notify()
        with suppress(OSError):  # The client has reset the connection; socketserver would print a traceback.
            while piece := self.request.recv(65_536):
                with server.changed:
                    received += piece
                    server.changed.notify()
                self.request.sendall(server.reply)


@pytest.fixture
def server() -> Iterator[RecordingServer]:
    with RecordingServer() as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield server
        server.shutdown()


def run_until(rounds: Generator[None, None, None], condition: Callable[[], bool]) -> None:
    """Run rounds of an attack until a condition holds."""

    def holds_after_a_round() -> bool:
        next(rounds)
        return condition()

    wait_until(holds_after_a_round, interval=0)


def test_idle_connections_send_nothing(server: RecordingServer) -> None:
    with closing(ATTACKS["1,000 idle connections"](server.port)) as rounds:
        next(rounds)
        assert server.wait_for(1_000, 0) == [b""] * 1_000


def test_slow_requests_send_heads_and_bodies_byte_by_byte(server: RecordingServer) -> None:
    with closing(ATTACKS["200 connections sending byte by byte"](server.port)) as rounds:
        next(rounds)
        server.wait_for(200, 200 * len(HEAD))
        next(rounds)
        texts = server.wait_for(200, 200 * (len(HEAD) + 2) + 100 * len(END_OF_HEAD))
    heads = [text for text in texts if b"\r\n\r\n" not in text]
    assert len(texts) == 200
    assert len(heads) == 100


def test_large_headers_send_one_megabyte(server: RecordingServer) -> None:
    next(ATTACKS["headers of 1 MB"](server.port))
    (text,) = server.wait_for(1, 1_000_000)
    assert b"\r\n\r\n" not in text


def test_truncated_bodies_send_less_than_the_content_length(server: RecordingServer) -> None:
    rounds = ATTACKS["truncated bodies"](server.port)
    next(rounds)
    next(rounds)
    for text in server.wait_for(2, 8_000):
        head, body = text.split(b"\r\n\r\n")
        assert b"Content-Length: 9000" in head
        assert len(body) == 4_000


def test_arriving_bodies_announce_more_than_they_send(server: RecordingServer) -> None:
    with closing(arriving_bodies(server.port, 3, "/v1/feedback", b"X-API-Key: k\r\n")) as rounds:
        for _ in range(100):
            next(rounds)
        texts = server.wait_for(3, 3 * (LARGE_BODY_BYTES - 1_000))
    for text in texts:
        head, body = text.split(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/feedback HTTP/1.1\r\n")
        assert head.endswith(b"Content-Length: %d\r\nX-API-Key: k" % LARGE_BODY_BYTES)
        assert len(body) == LARGE_BODY_BYTES - 1_000


def test_arriving_bodies_that_are_rejected_start_again(server: RecordingServer) -> None:
    server.reply = b"HTTP/1.1 429 Too Many Requests\r\n\r\n"
    with closing(arriving_bodies(server.port, 2)) as rounds:
        run_until(rounds, lambda: len(server.received) >= 6)


def test_clients_without_backoff_repeat_the_request_after_each_response(server: RecordingServer) -> None:
    server.reply = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\nRetry-After: 1\r\n\r\n{}"
    with closing(ATTACKS[RETRIES](server.port, 20)) as rounds:
        run_until(rounds, lambda: len(server.received) >= 20 and min(map(len, server.received)) >= 2_000)
        texts = server.wait_for(20, 40_000)
    assert len(texts) == 20, "connections are reused"
    for text in texts:
        head, body = text.split(b"\r\n\r\n")[:2]
        assert head.startswith(b"POST /v1/rank HTTP/1.1\r\n")
        length = int(head.rpartition(b"Content-Length: ")[2])
        assert len(json.loads(body[:length])["items"]["id"]) == RETRY_CANDIDATES


def test_feedback_flood_repeats_feedback_after_each_response(server: RecordingServer) -> None:
    server.reply = b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}"
    with closing(ATTACKS["feedback as fast as possible"](server.port)) as rounds:
        run_until(rounds, lambda: len(server.received) >= FLOOD_CLIENTS and min(map(len, server.received)) >= 10_000)
        texts = server.wait_for(FLOOD_CLIENTS, 10_000 * FLOOD_CLIENTS)
    assert len(texts) == FLOOD_CLIENTS, "connections are reused"
    for text in texts:
        head, body = text.split(b"\r\n\r\n")[:2]
        assert head.startswith(b"POST /v1/feedback HTTP/1.1\r\n")
        length = int(head.rpartition(b"Content-Length: ")[2])
        assert len(json.loads(body[:length])["events"]) == FLOOD_EVENTS


def test_process_prints_started_and_continues(server: RecordingServer) -> None:
    command = [sys.executable, "-m", "benchmarks.serving.attacks", "headers of 1 MB", str(server.port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attack:
        assert attack.stdout is not None
        assert attack.stdout.readline() == "started\n"
        server.wait_for(3, 2_000_000)
        attack.kill()
