"""Tests of the benchmark of the defaults for inputs (``python -m benchmarks.input_defaults``)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import input_defaults
from pipelines.config.config import Config


def with_history(config: Config) -> Config:
    document = config.model_dump(exclude_none=True)
    return Config.model_validate(document | {"histories": [{"of": "item_id", "label": "click", "name": "clicked"}]})


def test_variant_without_parts_has_the_earlier_defaults(config: Config) -> None:
    off = input_defaults.variant(with_history(config), ())
    assert {number.bins for number in off.numerics} == {0}
    assert [bag.pooling for bag in off.bags if bag.name == "clicked"] == ["mean"]
    assert (off.training.oov_dropout, off.training.history_dropout) == (0.0, 0.0)
    assert input_defaults.variant(with_history(config), input_defaults.PARTS) == with_history(config)


@pytest.mark.nightly(short="test_table_has_paired_differences_of_every_variant")
def test_results_are_metrics_of_the_validation_split(config: Config, tmp_path: Path) -> None:
    values = input_defaults.results(input_defaults.variant(config, ()), tmp_path / "run", 0)
    assert {metric for task, metric in values if task == "click"} == {"auc", "gauc", "gauc_by_user_day", "logloss"}
    assert 0.5 < values["click", "auc"] < 1.0


def test_table_has_paired_differences_of_every_variant(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fixed(variant: Config, folder: Path, seed: int) -> dict[tuple[str, str], float]:
        assert folder.parent == tmp_path / "work"
        return {("click", "auc"): 0.7 + 0.1 * seed + 0.01 * (variant.training.oov_dropout == "measured")}

    file = tmp_path / "ranker.toml"
    config.write(file)
    monkeypatch.setattr(input_defaults, "results", fixed)
    monkeypatch.setattr(sys, "argv", ["input_defaults", str(file), "--work", str(tmp_path / "work"), "--seeds", "2"])
    input_defaults.main()
    assert capsys.readouterr().out.splitlines() == [
        "| task | metric | none | oov_dropout | bins | histories | all |",
        "|---|---|---|---|---|---|---|",
        "| click | auc | 0.7500 | +0.0100 ± 0.0000 | +0.0000 ± 0.0000 | +0.0000 ± 0.0000 | +0.0100 ± 0.0000 |",
    ]
