"""SIGKILL of workers and services at random moments: finished files are complete, and hold what was acknowledged.

Services share the folders. Each loses single workers, which its supervisor replaces, and then all its processes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ranking.artifacts.log_names import SERVED
from tests.service.logs.recording_clients import RecordingClients
from tests.support.processes import ServiceProcess, running_service

MAX_ANSWERS = 200
"""Maximum number of answers between two kills."""


class FinishedFiles:
    """Checks of finished files; a file may neither be torn nor change.

    Args:
        log: folder of the served log.
        feedback: folder of the feedback.

    Attributes:
        logged: number of rows of each request id in the served log.
        received: number of lines of each feedback.
    """

    def __init__(self, log: Path, feedback: Path) -> None:
        self._folders = (log, "*.parquet"), (feedback, "*.jsonl")
        self._sizes: dict[Path, int] = {}
        self._lock = threading.Lock()
        self.logged: Counter[str] = Counter()
        self.received: Counter[str] = Counter()

    def check(self) -> None:
        """Read all files that were not read before."""
        with self._lock:
            for folder, pattern in self._folders:
                for path in set(folder.glob(pattern)) - self._sizes.keys():
                    self._sizes[path] = path.stat().st_size
                    (self._read_log if path.suffix == ".parquet" else self._read_feedback)(path)

    def check_unchanged(self) -> None:
        assert {path: path.stat().st_size for path in self._sizes} == self._sizes

    def contain(self, request_ids: set[str]) -> bool:
        """Read new files; return whether the served log has all these requests."""
        self.check()
        return request_ids <= self.logged.keys()

    def _read_log(self, path: Path) -> None:
        for row in pq.ParquetFile(path).read().to_pylist():
            assert len(row["item_id"]) == len(row["score"]) == _last_number(row["request_id"]), (path, row)
            assert row["user_id"] is not None
            assert row["time"] is not None
            self.logged[row["request_id"]] += 1

    def _read_feedback(self, path: Path) -> None:
        content = path.read_bytes()
        assert content.endswith(b"\n"), path
        for line in content.splitlines():
            document: Any = json.loads(line)
            self.received[f"{document['request_id']} {len(document['events'])}"] += 1


@pytest.mark.parametrize(
    ("services", "lives", "worker_kills"),
    [
        pytest.param(1, 1, 1, marks=pytest.mark.system, id="2 kills"),
        pytest.param(2, 5, 3, marks=pytest.mark.nightly, id="40 kills"),
    ],
)
def test_killed_processes_lose_the_last_answers_at_most(
    repository_with_tables: Path, tmp_path: Path, services: int, lives: int, worker_kills: int
) -> None:
    """Protects what was acknowledged against a kill; starts two workers in each life."""
    seed = int(os.environ.get("KILL_SEED", time.time_ns() % 1_000_000))
    print(f"KILL_SEED={seed} draws the same kills")
    log, feedback = tmp_path / "log", tmp_path / "feedback"
    settings = {"threads": 1, "served_log": log, "served_log_seconds": 1}
    settings |= {"feedback_dir": feedback, "feedback_max_seconds": 1}
    files, connections = FinishedFiles(log, feedback), []

    def run(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        for life in range(lives):
            with running_service(repository_with_tables, workers=2, **settings) as service:
                clients = RecordingClients(service.port, f"{number}-{life}")
                with clients.running():
                    service.wait_until(lambda clients=clients: clients.answered)
                    answered = set(clients.answered)
                    service.wait_until(lambda answered=answered: files.contain(answered))
                    kill_at_random_moments(service, clients, draw, worker_kills)
            assert not clients.faults, clients.faults[:3]
            connections.extend(clients.connections)

    with ThreadPoolExecutor(services) as pool:
        for future in [pool.submit(run, number) for number in range(services)]:
            future.result()
    age_unfinished_files(log)
    with running_service(repository_with_tables, **settings) as service:
        service.wait_until(lambda: not list(tmp_path.glob("*/*.part")))
    files.check()
    files.check_unchanged()
    assert max(files.logged.values()) == 1
    assert max(files.received.values()) == 1
    accepted = {feedback_id for connection in connections for feedback_id in connection.accepted}
    assert accepted
    assert not accepted - files.received.keys()
    lost = 0
    for connection in connections:  # all its requests were answered by the same process
        logged = list(takewhile(files.logged.__contains__, connection.answered))
        assert not files.logged.keys() & set(connection.answered[len(logged) :]), (
            "an answer before a logged one is lost"
        )
        lost += len(connection.answered) - len(logged)
    assert lost, "processes were killed while requests waited"


def kill_at_random_moments(
    service: ServiceProcess, clients: RecordingClients, draw: random.Random, worker_kills: int
) -> None:
    """Kill single workers and then all processes, each after a random number of further answers."""
    for kill in range(worker_kills + 1):
        goal = len(clients.answered) + draw.randint(1, MAX_ANSWERS)
        service.wait_until(lambda goal=goal: len(clients.answered) >= goal)
        if kill < worker_kills:
            os.kill(draw.choice(sorted(service.wait_until(service.worker_pids))), signal.SIGKILL)
        else:
            service.kill()


def age_unfinished_files(log: Path) -> None:
    """Rename the unfinished files of killed processes as if these had been killed two minutes earlier."""
    for path in log.glob("*.part"):
        created = datetime.now(UTC) - timedelta(minutes=2)
        path.rename(path.with_name(f"{SERVED.start(created)}-{path.name.split('-')[-1]}"))


def _last_number(request_id: str) -> int:
    return int(request_id.rpartition("-")[2])
