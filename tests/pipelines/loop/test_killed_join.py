"""A join that is killed before any change of a file leaves the rows of the old or of the new state."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.pipelines.killed_ranker import KilledRanker, killed_ranker
from tests.support.loop_folders import HOUR, LoopFolders


def row_ids(log: Path) -> list[str]:
    """Return the request ids that a reader of the log sees."""
    files = sorted(path for path in log.rglob("*.parquet") if not path.relative_to(log).parts[0].startswith("."))
    return sorted(name for file in files for name in pq.ParquetFile(file).read(["request_id"])[0].to_pylist())


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for temporary files of the killed commands."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def ranker(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledRanker]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        with killed_ranker(tmp_path_factory.mktemp("killed"), "pipelines.jobs.join") as ranker:
            yield ranker


@pytest.mark.system
def test_killed_join_leaves_the_old_or_the_new_rows(ranker: KilledRanker) -> None:
    """Protects the joined log: each join adds requests and is killed before a later change than the previous one."""
    loop = LoopFolders(ranker.folder / "rows")
    command = ["join", "--served", loop.served, "--feedback", loop.feedback, "--out", loop.log, "--window", "1h"]
    expected, served, outcomes = [], [], set()
    for step in count(0, 2):
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


@pytest.mark.nightly(short="test_killed_join_leaves_the_old_or_the_new_rows")
def test_join_removes_the_temporary_folder_of_a_killed_one(ranker: KilledRanker, temporary: Path) -> None:
    loop = LoopFolders(ranker.folder / "temporary")
    loop.serve({"r": (0, ["a"])})
    command = ["join", "--served", loop.served, "--feedback", loop.feedback, "--out", loop.log, "--window", "1h"]
    assert not ranker.run(*command, "--until", "2026-03-01T12:00:00Z")
    assert not list(temporary.iterdir())
    for step in count(1):
        assert ranker.run(*command, change=step)
        if list(temporary.glob("ranker-join-*")):
            break
    assert not ranker.run(*command)
    assert not list(temporary.glob("ranker-*"))
    assert row_ids(loop.log) == ["r"]
