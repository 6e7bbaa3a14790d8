"""SIGKILL of workers and services at random moments: finished files are complete, and hold what was acknowledged.

Two services share the folders. Each loses single workers, which its supervisor replaces, and then all its processes.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from service.output_folder import TIME_FORMAT
from tests.service.served.recording_clients import Connection, RecordingClients
from tests.support.processes import ServiceProcess, running_service

SERVICES, LIVES = 2, 5
"""Number of services, and how often all processes of each are killed."""
WORKERS, WORKER_KILLS = 2, 3
"""Workers of a service, and workers killed singly in each life."""
KILLS = SERVICES * LIVES * (WORKER_KILLS + 2)
"""Minimum number of killed processes: those workers, and a supervisor with at least one worker in each life."""
INTERVAL = 2.0
"""``served_log_seconds``."""
SLACK_SECONDS = 2.0
"""Seconds by which other work on the machine may delay the writer."""
MIN_SECONDS, MAX_SECONDS = 0.3, 3.5
"""Range of the seconds before a kill."""


class FinishedFiles:
    """Checks of finished files; a file may neither be torn nor change.

    Args:
        log: Folder of the served log.
        feedback: Folder of the feedback.

    Attributes:
        logged: Number of rows of each request id in the served log.
        received: Number of lines of each feedback.
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


@pytest.mark.slow
def test_killed_processes_lose_at_most_the_answers_of_the_interval(
    repository_with_tables: Path, tmp_path: Path
) -> None:
    log, feedback = tmp_path / "log", tmp_path / "feedback"
    settings = {"threads": 1, "served_log": log, "served_log_seconds": INTERVAL, "served_log_max_bytes": 200_000}
    settings |= {"feedback_dir": feedback, "feedback_max_bytes": 50_000, "feedback_max_seconds": 1}
    files, kills, connections = FinishedFiles(log, feedback), [], []

    def run(number: int) -> None:
        for life in range(LIVES):
            with running_service(repository_with_tables, workers=WORKERS, **settings) as service:
                clients = RecordingClients(service.port, f"{number}-{life}")
                with clients.running():
                    times = kill_at_random_moments(service, files)
            assert not clients.faults, clients.faults[:3]
            kills.extend(times)
            connections.extend((connection, times) for connection in clients.connections)

    with ThreadPoolExecutor(SERVICES) as pool:
        for future in [pool.submit(run, number) for number in range(SERVICES)]:
            future.result()
    assert len(kills) + SERVICES * LIVES == KILLS
    assert KILLS >= 50
    age_unfinished_files(log)
    with running_service(repository_with_tables, **settings) as service:
        service.wait_until(lambda: not list(tmp_path.glob("*/*.part")))
    files.check()
    files.check_unchanged()
    assert max(files.logged.values()) == 1
    assert max(files.received.values()) == 1
    accepted = {feedback_id for connection, _ in connections for feedback_id in connection.accepted}
    assert accepted
    assert not accepted - files.received.keys()
    lost = [age for connection, times in connections for age in ages_of_lost_answers(connection, times, files.logged)]
    assert lost, "processes were killed while requests waited"
    assert max(lost) <= INTERVAL + SLACK_SECONDS


def kill_at_random_moments(service: ServiceProcess, files: FinishedFiles) -> list[float]:
    """Kill single workers and then all processes; return the times of the kills."""
    times = []
    for kill in range(WORKER_KILLS + 1):
        time.sleep(random.uniform(MIN_SECONDS, MAX_SECONDS))
        pids = sorted(service.wait_until(service.worker_pids))
        times.append(time.monotonic())
        if kill < WORKER_KILLS:
            os.kill(random.choice(pids), signal.SIGKILL)
        else:
            service.kill()
        files.check()
    time.sleep(MIN_SECONDS)  # the clients notice
    return times


def ages_of_lost_answers(connection: Connection, kills: list[float], logged: Counter[str]) -> list[float]:
    """Return how long before the kill of their process the requests were answered that are not in the log."""
    kill = max((time for time in kills if time <= connection.ended), default=math.inf)
    return [kill - answered for request_id, answered in connection.answered.items() if request_id not in logged]


def age_unfinished_files(log: Path) -> None:
    """Rename the unfinished files of killed processes as if these had been killed two minutes earlier."""
    for path in log.glob("*.part"):
        created = datetime.now(UTC) - timedelta(minutes=2)
        path.rename(path.with_name(f"served-{created:{TIME_FORMAT}}-{path.name.split('-')[-1]}"))


def _last_number(request_id: str) -> int:
    return int(request_id.rpartition("-")[2])
