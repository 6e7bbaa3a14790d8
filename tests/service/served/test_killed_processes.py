"""SIGKILL at random moments: finished files are complete, and hold all answers that are older than the interval."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.served_files import logged_ids

KILLS = 60
"""Number of killed processes."""
INTERVAL = 2.0
"""``served_log_seconds`` of these processes."""
ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_killed_process_loses_at_most_the_answers_of_the_interval(repository_with_tables: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("kill_loop.py")), str(repository_with_tables)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [*command, str(tmp_path), str(KILLS), str(INTERVAL)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    killed = {kill["process"]: kill["killed"] for kill in map(json.loads, result.stdout.splitlines())}
    assert len(killed) == KILLS
    logged = logged_ids(tmp_path / "log")  # fails if a file with a final name is torn
    complete = set(logged)
    assert len(logged) == len(complete)
    lost = 0
    for process, kill_time in killed.items():
        file = tmp_path / f"answered-{process}"
        lines = file.read_text().splitlines() if file.exists() else []  # killed before its first request
        answered = {request_id: float(time) for request_id, time in map(str.split, lines)}
        missing = [time for request_id, time in answered.items() if request_id not in complete]
        lost += len(missing)
        assert all(kill_time - time <= INTERVAL for time in missing), (process, kill_time - min(missing))
    assert lost > 0, "the processes were killed while requests waited"
    assert logged
