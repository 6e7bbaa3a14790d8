"""Memory and open files of a service under mixed traffic, for seconds or, with ``make soak``, ten minutes."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from service.http.media_types import ARROW, JSON
from tests.support.arrow_streams import stream
from tests.support.memory import memory_bytes
from tests.support.processes import ServiceProcess, running_service

SECONDS = float(os.environ.get("RANKER_SOAK_SECONDS", "30"))
WARMUP_REQUESTS = 200
"""Requests per process after which buffers, caches and memory arenas have nearly reached their final sizes."""
MAX_GROWN_KB = 8 * 1024
"""Upper bound on the growth of the memory of all processes after that. A leak grows with the number of requests."""
SPARE_FILES = 2
"""Connections that may still be closing when the open files are counted."""

IDS = [f"v{i}" for i in range(300)]
OPTIONS = {"user": {"id": "u7"}, "context": {"surface": "home", "hour": 9}}
COLUMNS = {"item_id": IDS, "price": [1.0 + i / 7 for i in range(300)]}
ROWS = [{"id": name, "features": {"price": 1.0 + i}} for i, name in enumerate(IDS)]


def request(body: bytes, content_type: str = JSON, accept: str = JSON, path: str = "/v1/rank") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {content_type}\r\nAccept: {accept}\r\n"
    )
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


def json_body(**members: object) -> bytes:
    return json.dumps(OPTIONS | members).encode()


REQUESTS: list[tuple[bytes, bytes]] = [
    (request(json_body(items={"id": IDS})), b"200"),
    (request(json_body(items=ROWS, explain=True)), b"200"),
    (request(json_body(items={"id": IDS}, layout="columns", top_n=7)), b"200"),
    (request(stream(COLUMNS, OPTIONS), ARROW, ARROW), b"200"),
    (request(stream(COLUMNS, OPTIONS), ARROW), b"200"),
    (request(json_body(items=ROWS + ROWS)), b"422"),
    (request(json_body(items={"id": [None]})), b"422"),
    (request(stream({"item_id": ["x" * 2_000]}, OPTIONS), ARROW), b"422"),
    (request(stream(COLUMNS, OPTIONS)[:500], ARROW), b"400"),
    (request(b"[" * 50_000), b"400"),
    (request(json_body(items={"id": IDS}), path="/v1/models/none/rank"), b"404"),
    (request(json_body(items={"id": IDS}, deadline_ms=0.001)), b"504"),
    (request(b" " * 9_000_000), b"413"),
    (b"NONSENSE\r\n\r\n", b"400"),
    (get("/"), b"200"),
    (get("/v1/models"), b"200"),
    (get("/metrics"), b"200"),
    (get("/docs/swagger-ui.css"), b"200"),
    (get("/nowhere"), b"404"),
]
"""Raw requests with the expected status of their responses."""


def send(service: ServiceProcess, number: int) -> None:
    """Send one request of the mix; every third one is followed by a request that is aborted halfway."""
    raw, status = REQUESTS[number % len(REQUESTS)]
    with service.connect() as connection:
        with suppress(ConnectionError):  # the service does not read the rest of a request that it rejects
            connection.sendall(raw)
        assert connection.recv(12).endswith(status), (status, raw[:300])
        with suppress(ConnectionError):
            while connection.recv(65_536):
                pass
    if number % 3 == 0:
        with service.connect() as connection, suppress(ConnectionError):
            connection.sendall(raw[: len(raw) // 2])


def resident_kb_and_open_files(service: ServiceProcess) -> tuple[int, int]:
    """Resident memory that is not shared with files, and open files, of all processes of a service."""
    resident = files = 0
    for pid in {service.process.pid, *service.worker_pids()}:
        resident += memory_bytes(pid, "RssAnon") // 1024
        files += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return resident, files


@pytest.mark.parametrize(
    ("seconds", "workers"),
    [
        pytest.param(2.0, 2, marks=pytest.mark.system),
        *(pytest.param(SECONDS, workers, marks=[pytest.mark.system, pytest.mark.nightly]) for workers in (1, 2)),
    ],
)
def test_service_under_mixed_traffic_leaks_neither_memory_nor_files(
    repository: Path, seconds: float, workers: int
) -> None:
    """A service that runs for weeks must not grow, whatever clients send or abort."""
    with running_service(repository, workers=workers, threads=1) as service:
        pids = service.worker_pids()
        for number in range(WARMUP_REQUESTS * workers):
            send(service, number)
        memory_before, files_before = resident_kb_and_open_files(service)
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end or number < len(REQUESTS):
            send(service, number)
            number += 1
        service.wait_until(lambda: resident_kb_and_open_files(service)[1] <= files_before + SPARE_FILES)
        memory, files = resident_kb_and_open_files(service)
        print(
            f"{workers} workers, {number} requests in {seconds:g} s: "
            f"{memory_before} → {memory} kB, {files_before} → {files} files"
        )
        assert service.worker_pids() == pids, "no worker was replaced"
        assert memory <= memory_before + MAX_GROWN_KB
        assert "Traceback" not in service.output()
