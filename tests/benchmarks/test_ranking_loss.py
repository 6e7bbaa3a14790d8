"""Tests of the benchmark of the ranking loss (``python -m benchmarks.ranking_loss``)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipelines.config.config import Config, load_config


@pytest.mark.nightly(short="tests/benchmarks/test_counters.py::test_table_has_the_paired_difference_of_the_models")
def test_table_compares_the_ranking_loss_with_lightgbm_on_rows_and_on_the_order(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("lightgbm", reason="bench.lock is not installed")
    from benchmarks import ranking_loss
    from benchmarks.counters import boosting

    monkeypatch.setattr(boosting, "GRID", {"num_leaves": (7,), "min_data_in_leaf": (50,), "max_ids": (1_000,)})
    file, work = tmp_path / "ranker.toml", tmp_path / "work"
    config.write(file)
    options = ["--work", str(work), "--split", "test", "--seeds", "1", "--weight", "0.5"]
    monkeypatch.setattr(sys, "argv", ["ranking_loss", str(file), *options])
    ranking_loss.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("rows of the test split, 1 seeds, weight 0.5")
    (click,) = (line for line in lines if line.startswith("| click | auc |"))
    off, on, trees, ranked = (float(cell) for cell in click.split("|")[3:7])
    assert min(off, on, trees, ranked) > 0.55
    assert len({off, on, trees, ranked}) == 4

    trained = load_config(work / "weight-0.5-0" / "config.toml", stored=True).training.ranking_loss
    assert trained is not None
    assert (trained.weight, trained.within) == (0.5, "user_day")
    assert load_config(work / "off-0" / "config.toml", stored=True).training.ranking_loss is None
