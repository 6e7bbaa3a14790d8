"""A join that is killed at any moment leaves the rows of the old or of the new state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.support.loop_folders import HOUR, LoopFolders

KILLS = 30
MAX_SECONDS = 0.3
"""Maximum time until the kill."""
PROGRAM = """
import os, signal, sys, time
from datetime import datetime
from pathlib import Path
import duckdb, pyarrow.parquet
from pipelines.jobs.join import JoinSources, join

served, feedback, log = map(Path, sys.argv[1:])
for line in sys.stdin:
    until, seconds = line.split()
    child = os.fork()
    if not child:
        join(JoinSources(served, feedback), log, 3600, datetime.fromisoformat(until))
        os._exit(0)
    time.sleep(float(seconds))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("killed", flush=True)
"""
"""Forks a process for each line, so that the modules are imported only once."""


def row_ids(log: Path) -> list[str]:
    """Return the request ids that a reader of the log sees."""
    files = sorted(path for path in log.rglob("*.parquet") if not path.relative_to(log).parts[0].startswith("."))
    return sorted(name for file in files for name in pq.ParquetFile(file).read(["request_id"])[0].to_pylist())


@pytest.mark.slow
def test_killed_join_leaves_the_old_or_the_new_rows(tmp_path: Path) -> None:
    loop = LoopFolders(tmp_path)
    random = np.random.default_rng(0)
    expected: list[str] = []
    outcomes = {"old": 0, "new": 0}
    served: list[str] = []
    command = [sys.executable, "-c", PROGRAM, str(loop.served), str(loop.feedback), str(loop.log)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for step in range(KILLS):
            names = [f"{step}-{i}" for i in range(40)]
            served += names
            loop.serve({name: (step * 60 + i, ["a", "b"]) for i, name in enumerate(names)})
            loop.send(*((name, "a", {"is_click": 1.0}, step * 60 + 50) for name in names))
            process.stdin.write(f"2026-03-01T23:00:{step:02}+00:00 {random.uniform(0, MAX_SECONDS)}\n")
            process.stdin.flush()
            assert process.stdout.readline() == "killed\n"
            seen, new = row_ids(loop.log), sorted(2 * served)
            assert seen in (expected, new)
            outcomes["new" if seen == new else "old"] += 1
            expected = seen
        process.stdin.close()
    loop.join(until=20 * HOUR)
    assert row_ids(loop.log) == sorted(2 * served)
    assert {row["is_click"] for row in loop.rows() if row["iid"] == "a"} == {1}
    assert outcomes["old"], outcomes
