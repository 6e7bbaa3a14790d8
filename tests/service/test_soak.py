"""Mixed traffic for long, of which nothing may stay; ``make soak`` takes ten minutes of it."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

import pytest

from service.http.media_types import ARROW, JSON
from tests.support.arrow_streams import stream
from tests.support.serving import Service, serving

SECONDS = float(os.environ.get("RANKER_SOAK_SECONDS", "20"))
WARM = 400
"""Requests after which buffers, caches and arenas have their sizes."""
DRIFT = 1.02
OTHER_FILES = 2
"""That may be open by chance: a connection that is about to be closed."""

IDS = [f"v{i}" for i in range(300)]
REST = {"user": {"id": "u7"}, "context": {"surface": "home", "hour": 9}}
COLUMNS = {"item_id": IDS, "price": [1.0 + i / 7 for i in range(300)]}
ROWS = [{"id": name, "features": {"price": 1.0 + i}} for i, name in enumerate(IDS)]


def request(body: bytes, kind: str = JSON, accept: str = JSON, path: str = "/v1/rank") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {kind}\r\nAccept: {accept}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def dumped(**document: object) -> bytes:
    return json.dumps(REST | document).encode()


REQUESTS: list[tuple[bytes, bytes]] = [
    (request(dumped(items={"id": IDS})), b"200"),
    (request(dumped(items=ROWS, explain=True)), b"200"),
    (request(dumped(items={"id": IDS}, layout="columns", top_n=7)), b"200"),
    (request(stream(COLUMNS, REST), ARROW, ARROW), b"200"),
    (request(stream(COLUMNS, REST), ARROW), b"200"),
    (request(dumped(items=ROWS + ROWS)), b"422"),
    (request(dumped(items={"id": [None]})), b"422"),
    (request(stream({"item_id": ["x" * 2_000]}, REST), ARROW), b"422"),
    (request(stream(COLUMNS, REST)[:500], ARROW), b"400"),
    (request(b"[" * 50_000), b"400"),
    (request(dumped(items={"id": IDS}), path="/v1/models/none/rank"), b"404"),
    (request(dumped(items={"id": IDS}, deadline_ms=1e-6)), b"504"),
    (request(b" " * 9_000_000), b"413"),
    (b"NONSENSE\r\n\r\n", b"400"),
]
"""What is sent → the status of its answer."""


def send(service: Service, number: int) -> None:
    """One request, whole; every third one once more, but half of it."""
    sent, status = REQUESTS[number % len(REQUESTS)]
    with service.connect() as connection:
        with suppress(ConnectionError):  # it need not read what it refuses
            connection.sendall(sent)
        assert connection.recv(12).endswith(status), (status, sent[:300])
        with suppress(ConnectionError):
            while connection.recv(65_536):
                pass
    if number % 3 == 0:
        with service.connect() as connection:
            connection.sendall(sent[: len(sent) // 2])


def measured(service: Service) -> tuple[int, int]:
    """Resident kilobytes and open files."""
    memory = Path(f"/proc/{service.process.pid}/status").read_text()
    resident = int(memory.partition("VmRSS:")[2].split()[0])
    return resident, len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))


@pytest.mark.slow
def test_memory_and_files_stay_what_they_are(repository: Path) -> None:
    with serving(repository, threads=1) as service:
        for number in range(WARM):
            send(service, number)
        warm, files = measured(service)
        ends, number = time.monotonic() + SECONDS, 0
        while time.monotonic() < ends:
            send(service, number)
            number += 1
        time.sleep(1.0)
        memory, left = measured(service)
        print(f"{number} requests in {SECONDS:g} s: {warm} → {memory} kB, {files} → {left} files")
        assert number >= len(REQUESTS)
        assert left <= files + OTHER_FILES
        assert memory <= DRIFT * warm
