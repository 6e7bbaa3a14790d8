"""Shutdown of a service: draining, grace period, second signal and killed supervisor."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.background_load import BackgroundLoad
from tests.support.http_client import read_until_closed
from tests.support.processes import ServiceProcess, running_service
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

pytestmark = pytest.mark.system

DRAIN_SECONDS = 3.0
RANK = "POST /v1/rank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
WORKERS = pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.nightly), 2])


def open_partial_request(service: ServiceProcess, body: bytes) -> Any:
    """Open a connection and send a request without its last byte."""
    connection = service.connect()
    connection.sendall(RANK.format(len(body)).encode() + body[:-1])
    return connection


def send_rank(service: ServiceProcess, body: bytes) -> bytes:
    """Send a request on a connection of its own and return the response; empty if the connection fails."""
    with suppress(OSError), service.connect() as connection:
        connection.sendall(RANK.format(len(body)).replace("Host: x", "Host: x\r\nConnection: close").encode() + body)
        return read_until_closed(connection)
    return b""


def is_closed(service: ServiceProcess) -> bool:
    """Whether nothing listens on the port of the service."""
    try:
        service.connect().close()
    except ConnectionRefusedError:
        return True
    return False


def has_ended(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@WORKERS
def test_service_sigterm_drains_then_closes_and_finishes_requests(
    repository: Path, request_body: dict[str, Any], workers: int
) -> None:
    """A load balancer sends requests until it has noticed that the process is not ready: none may be lost."""
    body = json.dumps(request_body).encode()
    settings = {"drain_seconds": DRAIN_SECONDS, "grace_seconds": 600}
    with running_service(repository, workers=workers, threads=1, **settings) as service:
        pending = open_partial_request(service, body)
        assert b" 200 " in service.get("/v2/health/live")  # the pending request has been accepted, too
        terminated_at = time.monotonic()
        service.process.terminate()
        service.wait_until(lambda: not service.ready())
        drained = 0
        while (not_ready := service.get("/v2/health/ready")) and (ranked := send_rank(service, body)):
            assert not_ready.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1\r\n" in not_ready
            assert ranked.startswith(b"HTTP/1.1 200 "), "a draining service serves new connections"
            drained += 1
        assert drained
        assert time.monotonic() >= terminated_at + DRAIN_SECONDS
        service.wait_until(lambda: is_closed(service))  # else it would wait for a response that never comes
        pending.sendall(body[-1:])
        response = read_until_closed(pending)
        assert response.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close\r\n" in response
        assert service.process.wait(TIMEOUT_SECONDS) == 0, service.output()


@WORKERS
def test_service_sigterm_aborts_requests_after_grace_seconds(repository: Path, workers: int) -> None:
    settings = {"grace_seconds": 1, "read_seconds": 600}
    with (
        running_service(repository, workers=workers, threads=1, **settings) as service,
        open_partial_request(service, b"{}"),
    ):
        service.process.terminate()
        assert service.process.wait(TIMEOUT_SECONDS) == 0


@WORKERS
def test_service_second_signal_exits_immediately(repository: Path, workers: int) -> None:
    settings = {"drain_seconds": 600, "grace_seconds": 600}
    with running_service(repository, workers=workers, threads=1, **settings) as service:
        pids = service.worker_pids() if workers > 1 else set()
        service.process.terminate()
        service.wait_until(lambda: not service.ready())
        service.process.send_signal(signal.SIGINT)
        assert service.process.wait(TIMEOUT_SECONDS) == 128 + signal.SIGINT
        assert all(map(has_ended, pids))


def test_workers_exit_when_supervisor_is_killed(repository: Path) -> None:
    with running_service(repository, workers=2, threads=1) as service:
        pids = service.worker_pids()
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait()
        wait_until(lambda: all(map(has_ended, pids)), "the workers end")
        assert service.get("/v2/health/live") == b""


def test_service_that_drains_under_load_loses_no_request(repository: Path, request_body: dict[str, Any]) -> None:
    """Each request is sent over a new connection, while the service is not ready, too."""
    with running_service(repository, drain_seconds=600) as service:
        load = BackgroundLoad(service.port, request_body, count=8, headers={"Connection": "close"})
        with load.running():
            load.wait_for(100)
            service.process.terminate()
            service.wait_until(lambda: not service.ready())
            load.wait_for(100)
    assert set(load.statuses) == {200}
