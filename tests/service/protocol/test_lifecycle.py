"""How a service ends: in steps that load balancers can follow, with nothing lost, or at once."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipelines.jobs.demo import post
from tests.support.serving import WAIT, Service, read, serving

RANK = "POST /v1/rank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
WORKERS = pytest.mark.parametrize("workers", [1, 2])


def begun(service: Service, body: bytes) -> Any:
    """A connection with a request of which all but the last byte is sent."""
    connection = service.connect()
    connection.sendall(RANK.format(len(body)).encode() + body[:-1])
    return connection


def gone(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@pytest.mark.slow
@WORKERS
def test_it_is_not_ready_then_closed_and_finishes_what_it_has(
    repository: Path, request_body: dict[str, Any], workers: int
) -> None:
    body = json.dumps(request_body).encode()
    with serving(repository, workers=workers, threads=1, drain_seconds=3, grace_seconds=60) as service:
        service.until(lambda: workers == 1 or len(service.workers()) == workers)
        waiting = begun(service, body)
        assert b" 200 " in service.answer("/v2/health/live")  # so the request before it has been taken up, too
        told = time.monotonic()
        service.process.terminate()
        service.until(lambda: not service.ready())
        assert time.monotonic() < told + 3, "it was not ready only when it was closed"
        refused = service.answer("/v2/health/ready")
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in refused
        assert b" 200 " in service.answer("/v2/health/live")
        assert post(f"{service.url}/v1/rank", request_body)["items"], "new connections are served while it drains"
        service.until(lambda: service.answer("/v2/health/live") == b"")
        waiting.sendall(body[-1:])
        answer = read(waiting)
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close\r\n" in answer
        assert service.process.wait(WAIT) == 0, service.said()


@pytest.mark.slow
@WORKERS
def test_what_does_not_come_to_an_end_is_given_up_after_the_grace_time(repository: Path, workers: int) -> None:
    settings = {"grace_seconds": 1, "read_seconds": 600}
    with serving(repository, workers=workers, threads=1, **settings) as service, begun(service, b"{}"):
        service.process.terminate()
        assert service.process.wait(WAIT) == 0


@pytest.mark.slow
@WORKERS
def test_a_second_signal_ends_it_at_once(repository: Path, workers: int) -> None:
    settings = {"drain_seconds": 600, "grace_seconds": 600}
    with serving(repository, workers=workers, threads=1, **settings) as service:
        service.until(lambda: workers == 1 or len(service.workers()) == workers)
        pids = service.workers() if workers > 1 else set()
        service.process.terminate()
        service.until(lambda: not service.ready())
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(WAIT) == 128 + signal.SIGINT
        assert all(map(gone, pids))


@pytest.mark.slow
def test_workers_end_when_their_supervisor_is_killed(repository: Path) -> None:
    with serving(repository, workers=2, threads=1) as service:
        service.until(lambda: len(service.workers()) == 2)
        pids = service.workers()
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait()
        ends = time.monotonic() + WAIT
        while not all(map(gone, pids)):
            assert time.monotonic() < ends
            time.sleep(0.05)
        assert service.answer("/v2/health/live") == b""


@pytest.mark.slow
def test_no_request_is_lost_when_it_ends_under_load(repository: Path, request_body: dict[str, Any]) -> None:
    """Every client asks again and again in new connections, until it is refused one: no answer may be missing."""
    body = json.dumps(request_body).encode()
    answers: list[bytes] = []

    def ask() -> None:
        while True:
            try:
                connection = service.connect()
            except ConnectionRefusedError:
                return
            with connection:
                head = RANK.format(len(body)).replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
                connection.sendall(head.encode() + body)
                answers.append(read(connection))
            time.sleep(0.002)

    with serving(repository, drain_seconds=2) as service:
        clients = [threading.Thread(target=ask) for _ in range(8)]
        for client in clients:
            client.start()
        time.sleep(1.0)
        service.process.terminate()
        service.until(lambda: not service.ready())
        time.sleep(1.0)
        for client in clients:
            client.join(0.0)
        served = len(answers)
        assert served
        assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers[:served])
        assert service.process.wait(WAIT) == 0
        for client in clients:
            client.join(WAIT)
