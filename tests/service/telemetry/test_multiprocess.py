"""Metrics shared by several processes: each process exposes the totals of all."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ranking.temporary_folders import new_path
from service.telemetry.multiprocess import FOLDER, prune_dead_workers, shared_folder, shared_metrics
from service.telemetry.shared_values import SharedValues
from tests.support.http_client import post_json
from tests.support.processes import ServiceProcess, started_service
from tests.support.waiting import TIMEOUT_SECONDS


def workers(service: ServiceProcess) -> list[int]:
    """Return the process ids of both workers once both have metrics, until then an empty list."""
    pids = [int(name.rpartition("=")[2]) for name in service.metrics() if name.startswith("process_open_fds,pid=")]
    return pids if len(pids) == 2 else []


def loaded_workers(service: ServiceProcess) -> int:
    """Return how many processes have loaded the model since the start."""
    return service.output().count("serving feed version 1")


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Suspend a process briefly, so that the other worker answers."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def service(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceProcess]:
    """A service of two workers whose metrics folder is in ``tmp_path``."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with started_service(repository, ["--workers", "2", "--threads", "1"], worker_timeout_seconds=600) as service:
        service.wait_until(lambda: loaded_workers(service) == 2 and workers(service))
        yield service


@pytest.mark.system
def test_every_worker_exposes_the_totals_of_all_workers_including_killed_ones(
    service: ServiceProcess, request_body: dict[str, Any], tmp_path: Path
) -> None:
    """Protects the totals of counters against the end of a worker; starts three workers."""
    first, second = workers(service)
    for other in (first, second):
        with suspended(other):
            for _ in range(20):
                post_json(f"{service.url}/v1/rank", request_body)
    expected = {
        "ranker_requests_total,model=feed,status=200": 40,
        "ranker_request_seconds_count": 40,
        "ranker_stage_seconds_count,stage=forward": 40,
        "ranker_rows_scored_total,model=feed,version=1": 480,
        "ranker_score_count,model=feed,task=click": 480,
        "ranker_model_info,model=feed,role=current,version=1": 1,
        "ranker_requests_in_flight": 0,
        "ranker_queue_rows": 0,
    }
    # Telemetry is recorded after the response, so that a worker could be suspended before it.
    service.wait_until(lambda: service.metrics().items() >= expected.items())
    for other in (first, second):
        with suspended(other):
            assert service.metrics().items() >= expected.items()

    with suspended(second):  # the first worker receives a request whose body never arrives
        connection = service.connect()
        head = b"POST /v1/rank HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        connection.sendall(head)
        service.wait_for_metric("ranker_requests_in_flight", 1)
    os.kill(first, signal.SIGKILL)
    service.wait_until(lambda: (pids := workers(service)) and first not in pids)
    service.wait_until(lambda: loaded_workers(service) == 3)
    connection.close()
    assert service.metrics().items() >= expected.items()
    post_json(f"{service.url}/v1/rank", request_body)
    service.wait_for_metric("ranker_requests_total,model=feed,status=200", 41)

    assert list(tmp_path.glob("ranker-metrics-*"))
    service.process.terminate()
    service.process.wait(TIMEOUT_SECONDS)
    assert not list(tmp_path.glob("ranker-metrics-*"))


@pytest.mark.system
def test_next_service_removes_the_metrics_folder_of_a_killed_one_and_keeps_those_of_living_ones(
    service: ServiceProcess, repository: Path, tmp_path: Path
) -> None:
    (used,) = tmp_path.glob("ranker-metrics-*")
    with started_service(repository, workers=2, threads=1) as killed:
        killed.wait_until(lambda: len(list(tmp_path.glob("ranker-metrics-*/*.db"))) > len(list(used.glob("*.db"))))
        (abandoned,) = set(tmp_path.glob("ranker-metrics-*")) - {used}
        killed.kill()
    with started_service(repository, workers=2, threads=1) as following:
        following.wait_until(lambda: not abandoned.exists())
    assert used.is_dir()
    assert workers(service)


def test_metrics_folder_of_a_killed_supervisor_stays_while_a_worker_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = new_path("metrics", tmp_path)
    worker = SharedValues(folder)
    worker.create("counter", "requests", "requests_total", [], [], "Requests.")
    with shared_metrics():
        assert list(folder.glob("counter_*.db"))


def test_prune_dead_workers_removes_gauges_and_keeps_counters(tmp_path: Path) -> None:
    for name in ("counter_7", "histogram_7", "gauge_livesum_7", "gauge_livemax_7", "counter_8", "gauge_livesum_8"):
        (tmp_path / f"{name}.db").touch()
    prune_dead_workers(tmp_path, {8, None})
    remaining = {path.stem for path in tmp_path.iterdir()}
    assert remaining == {"counter_7", "histogram_7", "counter_8", "gauge_livesum_8"}


def test_shared_folder_is_set_only_within_shared_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    assert shared_folder() is None
    with shared_metrics() as folder:
        assert shared_folder() == folder
        assert folder.is_dir()
    assert shared_folder() is None
    assert not folder.exists()
