"""Clients that behave badly, one kind at a time, on a real process: what each is told, and that it is got rid of."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.serving import Service, read, serving

LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/rank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
BODY = b'{"items": [{"id": "v1"}]}'
RANK = POST.replace(b"100", b"%d" % len(BODY)) + BODY
SOON = 10.0
"""Seconds; limits are a tenth of it."""


@pytest.fixture(scope="module")
def service(repository: Path) -> Iterator[Service]:
    settings = {"header_seconds": 1, "read_seconds": 1, "max_connections": 50, "keep_alive_seconds": 1}
    with serving(repository, **settings) as service:
        yield service


def told(service: Service, *pieces: bytes, pause: float = 0.0) -> bytes:
    """What the service says until it closes, which it has to do soon."""
    start = time.monotonic()
    with service.connect() as connection:
        with suppress(ConnectionError):  # it need not listen to all of it
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)
        answer = read(connection)
    assert time.monotonic() - start < SOON
    return answer


def rejections(service: Service) -> dict[str, float]:
    text = service.answer("/metrics").partition(b"\r\n\r\n")[2].decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return {sample.labels["reason"]: sample.value for sample in families["ranker_rejections"].samples}


@pytest.mark.parametrize(
    ("pieces", "status", "reason"),
    [
        ((b"HELLO\r\n\r\n",), 400, "malformed"),
        ((LIVE + b"X: " + b"a" * 40_000,), 431, "large_headers"),
        ((LIVE + b"X: " + b"a" * 40_000 + b"\r\n\r\n",), 431, "large_headers"),
        ((LIVE + b"X: y\r\n" * 10_000 + b"\r\n",), 431, "large_headers"),
        ((LIVE + b"X: " + b"a" * 3_000_000 + b"\r\n\r\n",), 431, "large_headers"),
        ((b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n",), 431, "large_headers"),
        ((LIVE,), 408, "slow_headers"),
        ((POST + b'{"items"',), 408, "slow_body"),
        ((POST,), 408, "slow_body"),
        ((POST.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked") + b"1\r\n{\r\n",), 408, "slow_body"),
    ],
    ids=range(10),
)
def test_what_is_too_large_or_does_not_come_is_told_so_and_closed(
    service: Service, pieces: tuple[bytes, ...], status: int, reason: str
) -> None:
    before = rejections(service).get(reason, 0)
    answer = told(service, *pieces)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert b"content-type: application/problem+json\r\n" in answer
    assert b"connection: close\r\n" in answer
    assert rejections(service)[reason] == before + 1


@pytest.mark.parametrize("pieces", [[LIVE + b"X: ", *[b"a"] * 25], [POST, *[b" "] * 25]], ids=["head", "body"])
def test_what_comes_byte_by_byte_does_not_gain_time_by_it(service: Service, pieces: list[bytes]) -> None:
    assert told(service, *pieces, pause=0.1).startswith(b"HTTP/1.1 408 ")


def test_who_asks_nothing_is_closed(service: Service) -> None:
    assert told(service) == b""


def test_who_asks_no_more_is_closed(service: Service) -> None:
    answer = told(service, RANK)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close\r\n" not in answer


def test_large_headers_within_the_limit_and_pieces_in_time_are_fine(service: Service) -> None:
    with service.connect() as connection:
        connection.sendall(LIVE + b"X: " + b"a" * 30_000 + b"\r\n\r\n")
        assert connection.recv(20).startswith(b"HTTP/1.1 200 ")
    third = len(RANK) // 3
    pieces = RANK[:third], RANK[third : 2 * third], RANK[2 * third :]
    assert told(service, *pieces, pause=0.3).startswith(b"HTTP/1.1 200 ")


def test_requests_at_once_are_answered_in_order(service: Service) -> None:
    answer = told(service, RANK + LIVE + b"\r\n" + RANK.replace(b'"v1"', b'"v2"'))
    assert [answer.find(sign) > 0 for sign in (b'"v1"', b'"live"', b'"v2"')] == [True] * 3
    assert answer.index(b'"v1"') < answer.index(b'"live"') < answer.index(b'"v2"')


def test_a_client_that_sends_no_more_may_still_be_answered_and_leaves_nothing_behind(service: Service) -> None:
    files = Path(f"/proc/{service.process.pid}/fd")
    before = len(list(files.iterdir()))
    with ExitStack() as stack:
        for _ in range(40):
            connection = stack.enter_context(service.connect())
            connection.sendall(POST)
            connection.shutdown(socket.SHUT_WR)
        service.until(lambda: len(list(files.iterdir())) <= before + 2)


def test_one_connection_too_many_is_told_so(service: Service) -> None:
    service.until(lambda: service.answer("/v2/health/live") != b"")
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(service.connect())
        answer = told(service)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in answer
    service.until(lambda: b" 200 " in service.answer("/v2/health/live")[:20])


def test_an_answer_that_nobody_takes_is_given_up(service: Service) -> None:
    """Requests for answers of megabytes, and not one of them read."""
    items = b",".join(b'{"id": "v%d"}' % i for i in range(5_000))
    body = b'{"items": [' + items + b"]}"
    files = Path(f"/proc/{service.process.pid}/fd")
    before = len(list(files.iterdir()))
    with ExitStack() as stack:
        for _ in range(5):
            connection = stack.enter_context(service.connect())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.sendall(POST.replace(b"100", b"%d" % len(body)) + body)
        service.until(lambda: len(list(files.iterdir())) >= before + 5)
        service.until(lambda: len(list(files.iterdir())) <= before + 2)
