"""Memory of a service while many large bodies arrive and never end, over sockets."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipelines.bench.attacks import arriving_bodies
from service.http.auth.keys import create_key
from service.settings import Settings
from tests.support.http_client import send_request
from tests.support.metrics import samples
from tests.support.ports import HOST
from tests.support.processes import ServiceProcess, running_service
from tests.support.waiting import TIMEOUT_SECONDS

MIB = 1024 * 1024
READ_SECONDS, SECONDS = 6.0, 7.0
"""``read_seconds`` of the services, and the duration of the attack, which is longer."""
MIN_REQUESTS = 6
"""Minimum number of other requests during the attack, also on a busy machine."""
OVERHEAD = 1.5
"""Upper bound of the memory that the process takes per byte of the budget."""
OTHER_MEMORY = 96 * MIB
"""Memory for the connections, for a body that is being joined, and for the other requests."""


def resident_bytes(service: ServiceProcess) -> int:
    for line in Path(f"/proc/{service.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the process has no resident memory")


def peak_bytes(service: ServiceProcess) -> int:
    """Return the peak of the resident memory of the process."""
    for line in Path(f"/proc/{service.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the process has no peak memory")


def check_attack(
    service: ServiceProcess, body: Any, rank_headers: Mapping[str, str], path: str, connections: int, headers: bytes
) -> None:
    """Attack a service; assert that its memory is bounded and returned, and that other requests succeed."""
    large = body | {"items": [{"id": f"v{item}", "features": {"category": "K1" * 100}} for item in range(4_000)]}
    for _ in range(5):
        assert send_request(f"{service.url}/v1/rank", large, headers=rank_headers).status == 200
    before, peak, statuses = resident_bytes(service), 0, []
    with closing(arriving_bodies(service.port, connections, path, headers)) as attack:
        end, turn = time.monotonic() + SECONDS, 0
        while time.monotonic() < end or len(statuses) < MIN_REQUESTS:
            next(attack)
            turn += 1
            peak = max(peak, resident_bytes(service))
            if turn % 5 == 0:
                request = large if turn % 15 == 0 else body
                statuses.append(send_request(f"{service.url}/v1/rank", request, headers=rank_headers).status)
        metrics = samples(service.metrics())
    budget = Settings(repository=Path()).body_budget
    assert metrics["ranker_buffered_body_bytes"] <= budget
    assert metrics["ranker_rejections_total,reason=body_memory"] > 0
    assert peak - before < OVERHEAD * budget + OTHER_MEMORY, (before, peak)
    assert set(statuses) == {200}
    service.wait_until(lambda: samples(service.metrics())["ranker_buffered_body_bytes"] == 0)
    service.wait_until(lambda: resident_bytes(service) < before + OTHER_MEMORY)
    assert "Traceback" not in service.output()


@pytest.mark.slow
def test_bodies_of_rank_requests_that_never_end_take_bounded_memory(
    repository: Path, request_body: dict[str, Any]
) -> None:
    with running_service(repository, read_seconds=READ_SECONDS) as service:
        check_attack(service, request_body, {}, "/v1/rank", 250, b"")


@pytest.mark.slow
def test_large_lists_of_many_requests_are_not_parsed_at_once(repository: Path) -> None:
    """The parsed form of each body takes about 100 MiB."""
    topics = json.dumps([f"{number:x}" for number in range(1_000_000)]).encode()[: 7 * MIB].rpartition(b",")[0]
    body = b'{"items": [{"id": "v1", "features": {"topics": ' + topics + b"]}}]}"
    requests = 10
    with running_service(repository, threads=1) as service:

        def send(_: int) -> int:
            headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
            connection = http.client.HTTPConnection(HOST, service.port, timeout=TIMEOUT_SECONDS)
            with closing(connection):
                connection.request("POST", "/v1/rank", body, headers)
                return connection.getresponse().status

        assert send(0) == 200
        before = peak_bytes(service)
        with ThreadPoolExecutor(requests) as pool:
            assert set(pool.map(send, range(requests))) == {200}
        # Besides the bodies themselves, four are parsed at a time, and one of them was before.
        assert peak_bytes(service) - before < requests * len(body) * OVERHEAD + 3 * 100 * MIB + OTHER_MEMORY


@pytest.mark.slow
def test_bodies_sent_with_one_feedback_key_take_bounded_memory(
    repository: Path, request_body: dict[str, Any], tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    feedback = create_key(keys, "feedback", ("feedback",)).encode()
    rank = {"X-API-Key": create_key(keys, "rank", ("rank",))}
    with running_service(
        repository, keys=keys, feedback_dir=tmp_path / "feedback", read_seconds=READ_SECONDS
    ) as service:
        key = b"X-API-Key: " + feedback + b"\r\n"
        check_attack(service, request_body, rank, "/v1/feedback", 300, key)
