"""Tests of ``pipelines.jobs.refresh_counters``: the served model with newer counters."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.jobs.publish import publish
from pipelines.jobs.refresh_counters import refresh_counters
from ranking.artifacts import bundle, repository
from ranking.counters.state import StateClock
from ranking.schema import Schema
from tests.support.counted_ranker import COUNTED, NOW, draw_events, make_counted_ranker, make_tables, write_state

SCHEMA = Schema.model_validate(COUNTED)
DAY = 86_400_000_000
"""A day in microseconds."""


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """Publish a ranker whose counters end at ``NOW``; return the folder of the version."""
    ranker = make_counted_ranker(tmp_path / "state", text=True)
    bundle.write_bundle(ranker, ranker.complete(draw_events(8, 3, text=True)), tmp_path / "bundle")
    publish(tmp_path / "bundle", tmp_path / "repository")
    return repository.bundle_folder(tmp_path / "repository", "counted", 1)


def run_until(folder: Path, end: int) -> Any:
    """Return a run whose counters hold the events of the six days before a time."""
    write_state(folder / "counters", SCHEMA, draw_events(400, 0, text=True, end=end), make_tables(text=True))
    return SimpleNamespace(
        path=folder, counters=folder / "counters", load_config=lambda: SimpleNamespace(serving_schema=SCHEMA)
    )


@pytest.mark.parametrize("days", [0, 1])
def test_refresh_counters_publishes_counters_that_do_not_end_earlier(served: Path, tmp_path: Path, days: int) -> None:
    run = run_until(tmp_path / "run", NOW + days * DAY)
    assert refresh_counters(served, run, tmp_path / "refreshed", tmp_path / "repository") == 2
    version = repository.bundle_folder(tmp_path / "repository", "counted", 2)
    assert StateClock.read(version / bundle.COUNTERS) == StateClock.read(run.counters)


def test_refresh_counters_of_a_day_in_the_past_keeps_the_served_ones(
    served: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_until(tmp_path / "run", NOW - DAY)
    assert refresh_counters(served, run, tmp_path / "refreshed", tmp_path / "repository") is None
    (message,) = capsys.readouterr().err.splitlines()
    assert message.endswith(
        "the counters of the served version are kept: they count until 2025-06-15T14:43:02Z, "
        f"those of {run.path} only until 2025-06-14T14:43:02Z; a later --day continues them"
    )
    assert repository.list_versions(tmp_path / "repository", "counted") == [1]
