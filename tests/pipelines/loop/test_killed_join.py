"""A join that is killed before any change of a file leaves the rows of the old or of the new state."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.pipelines.killed_ranker import killed_ranker
from tests.support.loop_folders import HOUR, LoopFolders


def row_ids(log: Path) -> list[str]:
    """Return the request ids that a reader of the log sees."""
    files = sorted(path for path in log.rglob("*.parquet") if not path.relative_to(log).parts[0].startswith("."))
    return sorted(name for file in files for name in pq.ParquetFile(file).read(["request_id"])[0].to_pylist())


def test_killed_join_leaves_the_old_or_the_new_rows(tmp_path: Path) -> None:
    """Protects the joined log: each join adds requests and is killed before a later change than the previous one."""
    loop = LoopFolders(tmp_path)
    command = ["join", "--served", loop.served, "--feedback", loop.feedback, "--out", loop.log, "--window", "1h"]
    expected, served, outcomes = [], [], set()
    with killed_ranker(tmp_path, "pipelines.jobs.join") as ranker:
        for step in count():
            names = [f"{step}-{i}" for i in range(4)]
            served += 2 * names
            loop.serve({name: (step * 60 + i, ["a", "b"]) for i, name in enumerate(names)})
            loop.send(*((name, "a", {"is_click": 1.0}, step * 60 + 50) for name in names))
            killed = ranker.run(*command, "--until", f"2026-03-01T23:{step:02}:00Z", change=step)
            seen, new = row_ids(loop.log), sorted(served)
            assert seen in ((expected, new) if killed else (new,))
            outcomes.add((killed, seen == new))
            expected = seen
            if step and not killed:
                break
    assert outcomes == {(True, False), (True, True), (False, True)}
    loop.join(until=20 * HOUR)
    assert row_ids(loop.log) == sorted(served)
    assert {row["is_click"] for row in loop.rows() if row["iid"] == "a"} == {1}


def test_join_removes_the_temporary_folder_of_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    loop = LoopFolders(tmp_path / "loop")
    loop.serve({"r": (0, ["a"])})
    command = ["join", "--served", loop.served, "--feedback", loop.feedback, "--out", loop.log, "--window", "1h"]
    with killed_ranker(tmp_path / "loop", "pipelines.jobs.join") as ranker:
        for step in count(1):
            assert ranker.run(*command, change=step)
            if list(temporary.glob("ranker-join-*")):
                break
        assert not ranker.run(*command)
    assert not list(temporary.glob("ranker-*"))
    assert row_ids(loop.log) == ["r"]
