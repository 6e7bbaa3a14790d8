"""A full disk under the served log or the feedback: ranking goes on, and writing once there is room."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.feature_store_repositories import repository_with_tables  # noqa: F401
from tests.support.hand_ranker import *  # noqa: F403
from tests.support.http_client import send_request
from tests.support.metrics import samples
from tests.support.processes import ServiceProcess, running_service
from tests.support.served_files import logged_ids
from tests.support.small_filesystem import small_filesystem
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

SIZE = "1m"
"""Size of the filesystem."""
ITEMS = 400
"""Candidates of a ranking request, and events of a feedback request."""
REQUESTS = 300
"""Requests whose latency and memory are measured."""
MAX_SLOWDOWN = 5.0
"""Maximum ratio of the median latencies with a full disk and before."""
MAX_GROWTH_BYTES = 64 * 1024 * 1024
"""Maximum growth of the process's memory while the disk is full."""
LOGGED = "ranker_served_requests_total"
DROPPED = "ranker_served_dropped_total,reason=write_failed"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with small_filesystem(tmp_path / "small", SIZE) as folder:
        yield folder


class Client:
    """Sends ranking requests and feedback to a service, and records what it acknowledged."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service
        self.answered: list[str] = []
        self.accepted: list[str] = []
        self.rejected = 0

    def rank(self, count: int = 1) -> list[float]:
        """Send requests; return their latencies in seconds."""
        latencies = []
        for _ in range(count):
            request_id = f"r{len(self.answered)}"
            items = [{"id": item, "features": {"price": random.random()}} for item in range(ITEMS)]
            start = time.monotonic()
            response = send_request(f"{self._service.url}/v1/rank", {"request_id": request_id, "items": items})
            latencies.append(time.monotonic() - start)
            assert response.status == 200, response
            self.answered.append(request_id)
        return latencies

    def send_feedback(self) -> int:
        """Send feedback; return the status."""
        request_id = f"f{len(self.accepted)}-{self.rejected}"
        body = {"request_id": request_id, "events": [{"item": i, "labels": {"click": 1.0}} for i in range(ITEMS)]}
        response = send_request(f"{self._service.url}/v1/feedback", body)
        if response.status == 202:
            self.accepted.append(request_id)
        else:
            assert response.status == 503, response
            assert response.headers["retry-after"] == "10"
            self.rejected += 1
        return response.status


def value(service: ServiceProcess, name: str) -> float:
    return samples(service.metrics()).get(name, 0.0)


def memory(service: ServiceProcess) -> int:
    """Resident memory of the service in bytes."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def assert_reported_once_a_minute(service: ServiceProcess, message: str, start: float) -> None:
    """Check that the log has a message, and at most once a minute since ``start``."""
    assert 1 <= service.output().count(message) <= 1 + (time.monotonic() - start) / 60


def move_files(folder: Path, target: Path) -> None:
    """Move the finished files away, as a collector does."""
    target.mkdir(exist_ok=True)
    for path in [*folder.glob("*.parquet"), *folder.glob("*.jsonl")]:
        (target / path.name).write_bytes(path.read_bytes())
        path.unlink()


def test_served_log_on_a_full_disk_drops_requests_until_there_is_room(
    repository_with_tables: Path,  # noqa: F811
    full_disk: Path,
    tmp_path: Path,
) -> None:
    with running_service(repository_with_tables, threads=1, served_log=full_disk, served_log_seconds=1) as service:
        client, start = Client(service), time.monotonic()
        before = statistics.median(client.rank(100))
        wait_until(lambda: client.rank(20) and value(service, DROPPED) > 0, interval=0)
        memory_before = memory(service)
        assert statistics.median(client.rank(REQUESTS)) < MAX_SLOWDOWN * before
        assert memory(service) < memory_before + MAX_GROWTH_BYTES
        logged = value(service, LOGGED)
        move_files(full_disk, tmp_path / "collected")
        wait_until(lambda: client.rank() and value(service, LOGGED) > logged)
        service.wait_until(lambda: value(service, LOGGED) + value(service, DROPPED) == len(client.answered))
        dropped = value(service, DROPPED)
        assert_reported_once_a_minute(service, "the served log drops requests: No space left on device", start)
        assert not list(full_disk.glob("*.part"))
        ids = logged_ids(tmp_path / "collected") + logged_ids(full_disk)
    assert len(set(ids)) == len(ids) == len(client.answered) - dropped
    assert set(ids) <= set(client.answered)


def test_feedback_on_a_full_disk_is_rejected_until_there_is_room(
    repository_with_tables: Path,  # noqa: F811
    full_disk: Path,
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"feedback_dir": full_disk, "feedback_max_bytes": 200_000, "feedback_max_seconds": 1}
    with running_service(repository_with_tables, threads=1, **settings) as service:
        client, start = Client(service), time.monotonic()
        before = statistics.median(client.rank(50))
        wait_until(lambda: client.send_feedback() == 503, interval=0)
        memory_before, latencies = memory(service), []
        for _ in range(100):
            client.send_feedback()
            latencies += client.rank()
        assert client.rejected > 50
        assert statistics.median(latencies) < MAX_SLOWDOWN * before
        assert memory(service) < memory_before + MAX_GROWTH_BYTES
        assert value(service, "ranker_feedback_failures_total,operation=write") == client.rejected
        assert_reported_once_a_minute(service, "feedback cannot be written: ", start)
        move_files(full_disk, tmp_path / "collected")
        wait_until(lambda: client.send_feedback() == 202)
        service.wait_until(lambda: not list(full_disk.glob("*.part")))
        move_files(full_disk, tmp_path / "collected")
    contents = [path.read_bytes() for path in (tmp_path / "collected").iterdir()]
    assert all(content.endswith(b"\n") for content in contents), "no file is empty or torn"
    lines = [json.loads(line) for content in contents for line in content.splitlines()]
    assert sorted(line["request_id"] for line in lines) == sorted(client.accepted)
    assert all(len(line["events"]) == ITEMS for line in lines)
