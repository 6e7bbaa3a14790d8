"""Attempts of the clients: which failures they repeat, how long they wait, and when they give up."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from ranking.client import (
    ConnectionFailedError,
    OverloadedError,
    RankingClient,
    RankingError,
    RequestTimeoutError,
    ServiceError,
    UnavailableError,
)
from ranking.client.exchange import retry_after
from service.http.auth.keys import create_key
from tests.ranking.client.conftest import BlockingClient, OpenClient
from tests.support.ports import HOST, free_port
from tests.support.processes import ServiceProcess, running_service
from tests.support.server_thread import server_thread

IDS = ["v1", "v2"]
EVENT: dict[str, Any] = {"item": "v1", "labels": {"click": 1}}
TIMED = {**EVENT, "time": "2026-01-31T09:30:00Z"}
RANKING = b'{"request_id": "r", "model": "feed", "version": "1", "degraded": false, "items": [], "new_field": 1}'
ACCEPTED = b'{"accepted": 1}'
NO_ANSWER = b""


def response(status: int, body: bytes = b"{}", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class ScriptedServer:
    """A server that gives each connection the next response of a list, in pieces, and closes it.

    Attributes:
        requests: received requests.
        url: base URL of the server.
    """

    def __init__(self, listener: socket.socket, responses: list[list[bytes]]) -> None:
        self.requests: list[bytes] = []
        self.url = f"http://{HOST}:{listener.getsockname()[1]}"
        self._listener, self._responses = listener, responses

    def run(self) -> None:
        for pieces in self._responses:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self.requests.append(read_request(connection))
                try:
                    for piece in pieces:
                        connection.sendall(piece)
                        time.sleep(0.1 * (len(pieces) > 1))
                except OSError:
                    continue


def read_request(connection: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65_536)
    head, _, body = received.partition(b"\r\n\r\n")
    (length,) = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    while len(body) < length:
        body += connection.recv(65_536)
    return body


@contextmanager
def scripted_server(*responses: bytes | list[bytes]) -> Iterator[ScriptedServer]:
    with socket.create_server((HOST, 0)) as listener:
        server = ScriptedServer(listener, [[each] if isinstance(each, bytes) else each for each in responses])
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    "failure", [response(429), response(503), NO_ANSWER], ids=["overloaded", "unavailable", "connection closed"]
)
def test_ranking_is_sent_again_with_the_same_body(open_client: OpenClient, failure: bytes) -> None:
    with scripted_server(failure, failure, response(200, RANKING)) as server:
        assert open_client(server.url).rank(IDS).version == "1"
    assert len(server.requests) == 3
    assert len(set(server.requests)) == 1, "the request id is the same, so that the join counts one request"


@pytest.mark.parametrize(
    ("event", "failure", "error", "attempts"),
    [
        (EVENT, response(429), None, 2),
        (EVENT, response(503), UnavailableError, 1),
        (EVENT, NO_ANSWER, ConnectionFailedError, 1),
        (TIMED, response(503), None, 2),
        (TIMED, NO_ANSWER, None, 2),
    ],
)
def test_feedback_is_sent_again_only_if_a_repeat_changes_nothing(
    open_client: OpenClient, event: dict[str, Any], failure: bytes, error: type[Exception] | None, attempts: int
) -> None:
    with scripted_server(failure, response(202, ACCEPTED)) as server:
        client = open_client(server.url)
        if error is None:
            assert client.feedback("r-1", [event]).accepted == 1
        else:
            with pytest.raises(error):
                client.feedback("r-1", [event])
    assert len(server.requests) == attempts


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 500, 504])
def test_other_errors_are_not_retried(open_client: OpenClient, status: int) -> None:
    message = f"{status}: not a response of the service"
    responses = response(status, b"x"), response(200, RANKING)
    with scripted_server(*responses) as server, pytest.raises(RankingError, match=message):
        open_client(server.url).rank(IDS)
    assert len(server.requests) == 1


def test_retries_are_limited(open_client: OpenClient) -> None:
    failure = response(503, b'{"detail": "loading"}')
    with scripted_server(*[failure] * 5) as server, pytest.raises(UnavailableError, match="503: loading"):
        open_client(server.url, retries=3).rank(IDS)
    assert len(server.requests) == 4


@pytest.mark.parametrize("as_date", [False, True], ids=["seconds", "date"])
def test_retry_after_is_honoured(open_client: OpenClient, as_date: bool) -> None:
    start = time.time()
    date = math.floor(start + 2)
    header = f"Retry-After: {formatdate(date, usegmt=True) if as_date else 1}"
    with scripted_server(response(503, b"{}", header), response(200, RANKING)) as server:
        open_client(server.url, timeout=60).rank(IDS)
    assert time.time() >= (date if as_date else start + 1)


@pytest.mark.parametrize("options", [{"deadline_ms": 500}, {}], ids=["deadline", "timeout"])
def test_retry_after_beyond_the_deadline_fails_at_once(open_client: OpenClient, options: dict[str, Any]) -> None:
    failure = response(429, b"{}", "Retry-After: 1000")
    with scripted_server(failure) as server:
        start = time.monotonic()
        with pytest.raises(OverloadedError) as error:
            open_client(server.url, timeout=600).rank(IDS, **options)
        assert time.monotonic() - start < 30
    assert error.value.retry_after == 1000


def test_response_in_pieces_does_not_exceed_the_timeout(open_client: OpenClient) -> None:
    body = RANKING + b" " * 1000
    whole = response(200, body)
    pieces = [whole[:-1000], *[b" "] * 1000]  # for 100 s
    with scripted_server(pieces) as server:
        start = time.monotonic()
        with pytest.raises(RequestTimeoutError):
            open_client(server.url, timeout=0.5).rank(IDS)
        assert time.monotonic() - start < 30


def test_response_of_another_service_is_an_error(open_client: OpenClient) -> None:
    responses = [response(200, body) for body in (b"<html>", b"[]", b'{"items": [{"id": 1}]}')]
    with scripted_server(*responses) as server:
        for _ in responses:
            with pytest.raises(ServiceError, match="the response"):
                open_client(server.url).rank(IDS)


def test_client_of_a_rate_limited_key_waits_for_its_turn(
    open_client: OpenClient, repository: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    secret = create_key(keys, "tests", ("rank",), max_requests_per_second=2)
    with server_thread(repository, keys=keys) as port:
        url = f"http://{HOST}:{port}"
        impatient = open_client(url, secret, retries=0)
        with pytest.raises(OverloadedError) as error:
            all(impatient.rank(IDS) for _ in range(50))
        assert error.value.retry_after is not None
        assert error.value.retry_after >= 1
        client, start = open_client(url, secret, retries=5, timeout=60), time.monotonic()
        for _ in range(3):
            assert client.rank(IDS).model == "feed"
        assert time.monotonic() - start >= 1.0


@pytest.mark.system
def test_restart_of_the_service_is_not_noticed(repository: Path) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(running_service(repository, ["--port", str(free_port())]))
        clients = [kind(first.url, timeout=120, retries=1_000) for kind in (RankingClient, BlockingClient)]
        for client in clients:
            stack.enter_context(client).rank(IDS)
        first.process.terminate()
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(restart, first, repository)
            try:
                for _ in range(10):
                    for client in clients:
                        assert client.rank(IDS).version == "1"
                    time.sleep(0.05)
            finally:
                second.result().kill()


def restart(first: ServiceProcess, repository: Path) -> ServiceProcess:
    """Wait for the end of a service and start another one on its port."""
    first.process.wait(60)
    return ServiceProcess(repository, ["--port", str(first.port)])


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("2", 2.0),
        ("Sat, 31 Jan 2026 09:30:07 GMT", 7.0),
        ("Sat, 31 Jan 2026 09:29:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, datetime(2026, 1, 31, 9, 30, tzinfo=UTC)) == seconds
