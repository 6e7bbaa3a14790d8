"""A full disk under the served log or the feedback: ranking goes on, and writing once there is room."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.feature_store_repositories import repository_with_tables  # noqa: F401
from tests.support.hand_ranker import *  # noqa: F403
from tests.support.http_client import send_request
from tests.support.processes import ServiceProcess, running_service
from tests.support.served_files import logged_ids
from tests.support.small_filesystem import small_filesystem
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system

SIZE = "1m"
"""Size of the filesystem."""
ITEMS = 400
"""Candidates of a ranking request, and events of a feedback request."""
REQUESTS = 100
"""Requests that are sent while the disk is full."""
LOGGED = "ranker_served_requests_total"
DROPPED = "ranker_served_dropped_total,reason=write_failed"


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with small_filesystem(tmp_path / "small", SIZE) as folder:
        yield folder


class Client:
    """Sends ranking requests and feedback to a service, and records what it acknowledged."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service, self._draw = service, random.Random(0)
        self.answered: list[str] = []
        self.accepted: list[str] = []
        self.rejected = 0

    def rank(self, count: int = 1) -> None:
        """Send requests, each of which must be answered."""
        for _ in range(count):
            request_id = f"r{len(self.answered)}"
            items = [{"id": item, "features": {"price": self._draw.random()}} for item in range(ITEMS)]
            response = send_request(f"{self._service.url}/v1/rank", {"request_id": request_id, "items": items})
            assert response.status == 200, response
            self.answered.append(request_id)

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
    return service.metrics().get(name, 0.0)


def nothing_waits(service: ServiceProcess, client: Client) -> bool:
    """Whether each answered request was logged or dropped, and the log keeps none in memory."""
    values = service.metrics()
    counted = values.get(LOGGED, 0.0) + values.get(DROPPED, 0.0)
    return counted == len(client.answered) and values["ranker_served_queue_rows"] == 0


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
    """Protects ranking against a full disk; sends requests until it is full."""
    with running_service(repository_with_tables, threads=1, served_log=full_disk, served_log_seconds=1) as service:
        client, start = Client(service), time.monotonic()
        wait_until(lambda: client.rank(20) or value(service, DROPPED) > 0, interval=0)
        client.rank(REQUESTS)
        service.wait_until(lambda: nothing_waits(service, client))
        logged = value(service, LOGGED)
        move_files(full_disk, tmp_path / "collected")
        wait_until(lambda: client.rank() or value(service, LOGGED) > logged)
        service.wait_until(lambda: nothing_waits(service, client))
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
    """Protects accepted feedback against a full disk; sends feedback until it is full."""
    settings: dict[str, Any] = {"feedback_dir": full_disk, "feedback_max_seconds": 1}
    with running_service(repository_with_tables, threads=1, **settings) as service:
        client, start = Client(service), time.monotonic()
        wait_until(lambda: client.send_feedback() == 503, interval=0)
        for _ in range(REQUESTS):
            client.send_feedback()
            client.rank()
        assert client.rejected > REQUESTS / 2
        assert value(service, "ranker_feedback_queue_bytes") == 0
        assert value(service, "ranker_feedback_failures_total,operation=write") == client.rejected
        assert_reported_once_a_minute(service, "feedback cannot be written: ", start)
        service.wait_until(lambda: list(full_disk.glob("*.jsonl")))
        move_files(full_disk, tmp_path / "collected")
        wait_until(lambda: client.send_feedback() == 202)
        service.wait_until(lambda: not list(full_disk.glob("*.part")))
        move_files(full_disk, tmp_path / "collected")
    contents = [path.read_bytes() for path in (tmp_path / "collected").iterdir()]
    assert all(content.endswith(b"\n") for content in contents), "no file is empty or torn"
    lines = [json.loads(line) for content in contents for line in content.splitlines()]
    assert sorted(line["request_id"] for line in lines) == sorted(client.accepted)
    assert all(len(line["events"]) == ITEMS for line in lines)
