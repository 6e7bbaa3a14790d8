"""Metrics of a service of several processes: any of them answers for all."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pipelines.jobs.demo import post
from service.telemetry.multiprocess import FOLDER, prune_dead_workers, shared_folder, shared_metrics

WAIT = 180
"""Seconds that starting or stopping may take on a busy machine."""


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not happened():
        assert time.monotonic() < deadline, "the service did not come to that"
        time.sleep(0.05)


class Two:
    """A service of two processes, one of which can be held up, so that the other answers."""

    def __init__(self, repository: Path, temporary: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        serve = [sys.executable, "-m", "pipelines.cli", "serve", str(repository), "--port", str(self.port)]
        self.log = temporary / "log"
        with self.log.open("w") as stderr:
            self.process = subprocess.Popen(
                [*serve, "--workers", "2", "--threads", "1"],
                stderr=stderr,
                start_new_session=True,
                env=os.environ | {"TMPDIR": str(temporary)},
            )

    def workers(self) -> list[int]:
        """The processes that have metrics, once there are two."""
        with suppress(OSError):
            found = self.metrics()
            pids = [int(name.rpartition("=")[2]) for name in found if name.startswith("process_open_fds,pid=")]
            return pids if len(pids) == 2 else []
        return []

    def loaded(self) -> int:
        """How many processes have come so far that they serve."""
        return self.log.read_text().count("serving feed version 1")

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as response:
            text = response.read().decode()
        return {
            sample.name + "".join(f",{name}={value}" for name, value in sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    @contextmanager
    def held(self, pid: int) -> Iterator[None]:
        """For a moment: one that does not answer for long is replaced."""
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


@pytest.fixture
def two(repository: Path, tmp_path: Path) -> Iterator[Two]:
    service = Two(repository, tmp_path)
    try:
        until(lambda: service.loaded() == 2 and bool(service.workers()))
        yield service
    finally:
        with suppress(ProcessLookupError):
            os.killpg(service.process.pid, signal.SIGKILL)
        service.process.wait()


@pytest.mark.slow
def test_any_process_answers_for_all_and_for_those_that_died(
    two: Two, request_body: dict[str, Any], tmp_path: Path
) -> None:
    first, second = two.workers()
    for other in (first, second):
        with two.held(other):
            for _ in range(20):
                post(f"{two.url}/v1/rank", request_body)
    counted = {
        "ranker_requests_total,model=feed,status=200": 40,
        "ranker_request_seconds_count": 40,
        "ranker_stage_seconds_count,stage=forward": 40,
        "ranker_rows_scored_total,model=feed,version=1": 480,
        "ranker_score_count,model=feed,task=click": 480,
        "ranker_model_info,model=feed,role=current,version=1": 1,
        "ranker_requests_in_flight": 0,
        "ranker_queue_rows": 0,
    }
    for other in (first, second):
        with two.held(other):
            assert two.metrics().items() >= counted.items()

    with two.held(second):  # so that the first gets a request, whose body never comes
        waiting = socket.create_connection(("127.0.0.1", two.port))
        waiting.sendall(
            b"POST /v1/rank HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        )
        time.sleep(0.5)
    assert two.metrics()["ranker_requests_in_flight"] == 1
    os.kill(first, signal.SIGKILL)
    until(lambda: len(workers := two.workers()) == 2 and first not in workers)
    until(lambda: two.loaded() == 3)
    waiting.close()
    assert two.metrics().items() >= counted.items()
    post(f"{two.url}/v1/rank", request_body)
    assert two.metrics()["ranker_requests_total,model=feed,status=200"] == 41

    assert list(tmp_path.glob("ranker-metrics-*"))
    two.process.terminate()
    two.process.wait(WAIT)
    assert not list(tmp_path.glob("ranker-metrics-*"))


def test_what_a_dead_process_counted_stays_and_what_it_said_of_its_state_goes(tmp_path: Path) -> None:
    for name in ("counter_7", "histogram_7", "gauge_livesum_7", "gauge_livemax_7", "counter_8", "gauge_livesum_8"):
        (tmp_path / f"{name}.db").touch()
    prune_dead_workers(tmp_path, {8, None})
    left = {path.stem for path in tmp_path.iterdir()}
    assert left == {"counter_7", "histogram_7", "counter_8", "gauge_livesum_8"}


def test_a_process_alone_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    assert shared_folder() is None
    with shared_metrics() as folder:
        assert shared_folder() == folder
        assert folder.is_dir()
    assert shared_folder() is None
    assert not folder.exists()
