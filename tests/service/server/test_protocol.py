"""Connection limits of a real process: the response to each kind of misbehaving client, and how its connection ends."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.support.http_client import read_until_closed
from tests.support.processes import ServiceProcess, cli_after, running_service

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/rank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
BODY = b'{"items": [{"id": "v1"}]}'
RANK = POST.replace(b"100", b"%d" % len(BODY)) + BODY
LAST = RANK.replace(b"Host: x", b"Host: x\r\nConnection: close")
"""A request after whose response the service closes the connection."""


@pytest.fixture(scope="module")
def service(repository: Path) -> Iterator[ServiceProcess]:
    """A service whose timeouts no test reaches."""
    patient = {"read_seconds": 600, "keep_alive_seconds": 600, "max_connections": 50}
    python = cli_after("from service.server import protocol; protocol.HEADER_SECONDS = 600")
    with running_service(repository, python=python, **patient) as service:
        yield service


@pytest.fixture(scope="module")
def impatient_service(repository: Path) -> Iterator[ServiceProcess]:
    with running_service(repository, read_seconds=1, keep_alive_seconds=1) as service:
        yield service


def exchange(service: ServiceProcess, *segments: bytes, pause: float = 0.0) -> bytes:
    """Send the segments and return all that the service sends until it closes the connection."""
    with service.connect() as connection:
        with suppress(ConnectionError):  # the service may close the connection before it has read everything
            for segment in segments:
                connection.sendall(segment)
                time.sleep(pause)
        return read_until_closed(connection)


def rejections(service: ServiceProcess, reason: str) -> float:
    return service.metrics().get(f"ranker_rejections_total,reason={reason}", 0.0)


def open_files(service: ServiceProcess) -> int:
    return len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))


CHUNKED = POST.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked")
TWO_HOSTS = LIVE + b"Host: y\r\n\r\n"
NO_HOST = LIVE.replace(b"Host: x\r\n", b"\r\n")
REJECTED = {
    "not HTTP": (b"HELLO\r\n\r\n", 400, "malformed"),
    "two hosts": (TWO_HOSTS, 400, "malformed"),
    "no host": (NO_HOST, 400, "malformed"),
    "two hosts in HTTP/1.0": (TWO_HOSTS.replace(b"/1.1", b"/1.0"), 400, "malformed"),
    "incomplete large header": (LIVE + b"X: " + b"a" * 40_000, 431, "large_headers"),
    "large header": (LIVE + b"X: " + b"a" * 40_000 + b"\r\n\r\n", 431, "large_headers"),
    "many headers": (LIVE + b"X: y\r\n" * 10_000 + b"\r\n", 431, "large_headers"),
    "header of 3 MB": (LIVE + b"X: " + b"a" * 3_000_000 + b"\r\n\r\n", 431, "large_headers"),
    "large URL": (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n", 431, "large_headers"),
}
TOO_SLOW = {
    "incomplete headers": (LIVE, 408, "slow_headers"),
    "incomplete body": (POST + b'{"items"', 408, "slow_body"),
    "no body": (POST, 408, "slow_body"),
    "incomplete chunked body": (CHUNKED + b"1\r\n{\r\n", 408, "slow_body"),
}


@pytest.mark.parametrize(("segment", "status", "reason"), REJECTED.values(), ids=REJECTED)
def test_protocol_request_over_a_limit_is_rejected_and_connection_closed(
    service: ServiceProcess, segment: bytes, status: int, reason: str
) -> None:
    check_rejection(service, segment, status, reason)


@pytest.mark.system
@pytest.mark.parametrize(("segment", "status", "reason"), TOO_SLOW.values(), ids=TOO_SLOW)
def test_protocol_request_over_a_timeout_is_rejected_and_connection_closed(
    impatient_service: ServiceProcess, segment: bytes, status: int, reason: str
) -> None:
    check_rejection(impatient_service, segment, status, reason)


def check_rejection(service: ServiceProcess, segment: bytes, status: int, reason: str) -> None:
    before = rejections(service, reason)
    response = exchange(service, segment)
    assert response.startswith(b"HTTP/1.1 %d " % status), response[:200]
    assert b"content-type: application/problem+json\r\n" in response
    assert b"connection: close\r\n" in response
    service.wait_until(lambda: rejections(service, reason) == before + 1)


def test_protocol_http_1_0_request_without_host_is_accepted(service: ServiceProcess) -> None:
    assert exchange(service, NO_HOST.replace(b"/1.1", b"/1.0")).startswith(b"HTTP/1.1 200 ")


def test_protocol_client_that_pipelines_and_leaves_is_not_an_error(service: ServiceProcess) -> None:
    """The client leaves before, during and after the first of several requests, politely or with a reset."""
    requests = (RANK + LIVE + b"\r\n" + RANK) * 3 + POST
    with ExitStack() as stack:
        for number in range(40):
            connection = stack.enter_context(service.connect())
            if number % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset on close
            connection.sendall(requests)
            time.sleep(number % 8 / 2_000)
            connection.close()
    assert exchange(service, LAST).startswith(b"HTTP/1.1 200 ")
    assert "Traceback" not in service.output()
    assert '"error"' not in service.output()


@pytest.mark.system
@pytest.mark.parametrize(("start", "byte"), [(LIVE + b"X: ", b"a"), (POST, b" ")], ids=["head", "body"])
def test_protocol_request_sent_byte_by_byte_does_not_extend_the_timeout(
    impatient_service: ServiceProcess, start: bytes, byte: bytes
) -> None:
    with impatient_service.connect() as connection:
        connection.sendall(start)

        def responds_after_another_byte() -> bool:
            with suppress(ConnectionError):
                connection.sendall(byte)
            try:
                return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
            except BlockingIOError:
                return False

        impatient_service.wait_until(responds_after_another_byte)
        assert read_until_closed(connection).startswith(b"HTTP/1.1 408 ")


@pytest.mark.system
def test_protocol_connection_without_request_is_closed(impatient_service: ServiceProcess) -> None:
    assert exchange(impatient_service) == b""


@pytest.mark.system
def test_protocol_idle_connection_after_a_response_is_closed(impatient_service: ServiceProcess) -> None:
    response = exchange(impatient_service, RANK)
    assert response.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close\r\n" not in response


def test_protocol_large_headers_within_the_limit_are_accepted(service: ServiceProcess) -> None:
    with service.connect() as connection:
        connection.sendall(LIVE + b"X: " + b"a" * 30_000 + b"\r\n\r\n")
        assert connection.recv(20).startswith(b"HTTP/1.1 200 ")


def test_protocol_request_in_segments_within_the_timeout_is_accepted(service: ServiceProcess) -> None:
    third = len(LAST) // 3
    segments = LAST[:third], LAST[third : 2 * third], LAST[2 * third :]
    assert exchange(service, *segments, pause=0.05).startswith(b"HTTP/1.1 200 ")


def test_protocol_pipelined_requests_are_answered_in_order(service: ServiceProcess) -> None:
    response = exchange(service, RANK + LIVE + b"\r\n" + LAST.replace(b'"v1"', b'"v2"'))
    assert [response.find(mark) > 0 for mark in (b'"v1"', b'"live"', b'"v2"')] == [True] * 3
    assert response.index(b'"v1"') < response.index(b'"live"') < response.index(b'"v2"')


@pytest.mark.system
def test_protocol_half_closed_connections_are_closed_after_the_timeout(impatient_service: ServiceProcess) -> None:
    service, before = impatient_service, open_files(impatient_service)
    with ExitStack() as stack:
        connections = [stack.enter_context(service.connect()) for _ in range(40)]
        for connection in connections:
            connection.sendall(POST)
            connection.shutdown(socket.SHUT_WR)
        for connection in connections:
            read_until_closed(connection)
        service.wait_until(lambda: open_files(service) <= before + 2)


def test_protocol_connection_above_the_limit_is_rejected_with_503(service: ServiceProcess) -> None:
    service.wait_until(lambda: service.get("/v2/health/live") != b"")
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(service.connect())
        response = exchange(service)
        assert response.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in response
    service.wait_until(lambda: b" 200 " in service.get("/v2/health/live")[:20])


@pytest.mark.system
def test_protocol_response_that_the_client_does_not_read_is_aborted(impatient_service: ServiceProcess) -> None:
    """The clients request responses of megabytes and read none of them."""
    items = b",".join(b'{"id": "v%d"}' % i for i in range(5_000))
    body = b'{"items": [' + items + b"]}"
    service, before = impatient_service, open_files(impatient_service)
    with ExitStack() as stack:
        for _ in range(5):
            connection = stack.enter_context(service.connect())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.sendall(POST.replace(b"100", b"%d" % len(body)) + body)
        assert service.get("/v2/health/live"), "this connection is accepted after the others"
        service.wait_until(lambda: open_files(service) <= before + 2)
