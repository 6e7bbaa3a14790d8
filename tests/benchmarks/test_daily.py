"""Tests of the benchmark of daily training (``python -m benchmarks.daily``)."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import daily as benchmark
from pipelines.config.config import Config
from pipelines.jobs.publish import publish
from ranking.errors import QualityGateError
from ranking.metrics import UnitDraws

EIGHTH, NINTH, TENTH = (date(2026, 1, day) for day in (8, 9, 10))


def test_served_days_end_with_the_log(config: Config) -> None:
    assert benchmark.served_days(config, 3) == [EIGHTH, NINTH, TENTH]


def test_replay_adds_days_one_by_one_and_returns_the_served_versions(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = {}
    results = {
        date(2026, 1, 7): {"version": 1, "refreshed": None},
        EIGHTH: {"version": None, "refreshed": None},
        NINTH: {"version": None, "refreshed": 2},
    }

    def job(config: Config, runs: Path, repo: Path, day: date, *, margin: float) -> dict[str, Any]:
        newest[day] = max(folder.name for folder in (tmp_path / "log").iterdir())
        (runs / day.isoformat()).mkdir(parents=True)
        (runs / day.isoformat() / "daily.json").write_text(json.dumps(results[day]))
        assert config.training.seed == 3
        if results[day]["version"] is None:
            raise QualityGateError(f"{day} is not published")
        return results[day]

    monkeypatch.setattr(benchmark, "daily", job)
    versions = benchmark.replay(config, tmp_path, [EIGHTH, NINTH, TENTH], seed=3)
    assert versions == {EIGHTH: 1, NINTH: 1, TENTH: 2}
    assert newest == {day: f"date={day.isoformat()}" for day in results}

    monkeypatch.setattr(benchmark, "daily", lambda *_, **__: pytest.fail("finished jobs are not repeated"))
    assert benchmark.replay(config, tmp_path, [EIGHTH, NINTH, TENTH], seed=3) == versions


def test_measured_averages_the_auc_of_the_days(config: Config, bundle: Path, tmp_path: Path) -> None:
    publish(bundle, tmp_path / "repository")
    (tmp_path / "columns").mkdir()
    cache = benchmark.ColumnCache(tmp_path / "columns")
    parts = benchmark.score(config, tmp_path / "repository", {NINTH: 1, TENTH: 1}, cache)
    assert len(list((tmp_path / "columns").iterdir())) == 1
    assert [len(np.unique(part.days)) for part in parts] == [1, 1]
    both = benchmark.concatenated(parts)
    draws = UnitDraws(both.units, 10)
    expected = [benchmark.measured(part, UnitDraws(part.units, 0), config)["click"]["auc"][0] for part in parts]
    metrics = benchmark.measured(both, draws, config)
    assert metrics["click"]["auc"][0] == pytest.approx(np.mean(expected))
    assert metrics["click"]["auc"].shape == (11,)
    assert "gauc" not in metrics["click"]
