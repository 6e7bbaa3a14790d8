"""Tests of the benchmark of counters (``python -m benchmarks.counters``)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.counters.metrics import by_day, mean, measured, table, without_counters
from pipelines.config.config import Config, load_config
from pipelines.datasets.write import counter
from pipelines.evaluation.baselines.tree_columns import TreeColumns
from pipelines.evaluation.predict import predict
from pipelines.evaluation.sources import run_scorers
from pipelines.runs.run import RunFolder
from ranking.encoding.batch import EncodedBatch, RaggedIds
from ranking.metrics import UnitDraws

SIZES = (5, 2_000, 9, 0, 9, 0, 0)
"""Two ids, a bag and a sequence with their lengths, and a number."""


def test_tree_columns_hold_one_id_of_each_list_and_its_length() -> None:
    bag = RaggedIds(np.array([7, 8, 0, 5]), np.array([2, 1, 0, 1]))
    sequence = RaggedIds(np.array([4, 6, 3]), np.array([0, 2, 1, 0]))
    batch = EncodedBatch(
        np.array([[1, 3], [2, 0], [0, 1], [4, 4]]), (bag, sequence), np.full((4, 1), 0.5, np.float32), np.zeros((4, 0))
    )
    nan = np.nan
    np.testing.assert_array_equal(
        TreeColumns(SIZES, (False, True)).matrix(batch),
        [
            [1, 3, 7, 2, nan, 0, 0.5],
            [2, nan, nan, 0, 6, 2, 0.5],
            [nan, 1, nan, 0, 3, 1, 0.5],
            [4, 4, 5, 1, nan, 0, 0.5],
        ],
    )


def test_tree_columns_without_large_tables_keep_numbers() -> None:
    assert TreeColumns(SIZES, (False, True)).up_to(9) == [0, 2, 3, 4, 5, 6]


def test_without_counters_leaves_the_other_features(logs: Path) -> None:
    plain = load_config(logs / "ranker.toml", ["counters=[]"])
    document = counter(["user_id"], ["click"])
    counted = plain.model_validate(plain.model_dump() | {"counters": [document]})
    assert counted.training_schema.counter_features
    assert without_counters(counted).training_schema == plain.training_schema


def test_by_day_removes_every_delay(logs: Path) -> None:
    delayed = [counter(["user_id"], ["click"], delay="1h"), counter(["item_id"], ["click"], as_of="day")]
    histories = [{"of": "item_id", "label": "click", "delay": "1m"}]
    plain = load_config(logs / "ranker.toml", ["counters=[]"]).model_dump()
    config = Config.model_validate(plain | {"counters": delayed, "histories": histories})
    days = [{key: value for key, value in entry.items() if key not in ("delay", "as_of")} for entry in delayed]
    without = [{"of": "item_id", "label": "click"}]
    expected = Config.model_validate(plain | {"counters": days, "histories": without})
    assert by_day(config) == expected
    assert by_day(config).training_schema == expected.training_schema


def test_table_has_the_paired_difference_of_the_models(run: RunFolder, config: Config) -> None:
    (scorer,) = run_scorers(run)
    predictions = predict(scorer, scorer.log_range(None))
    draws = UnitDraws(predictions.units, 20)
    metrics = measured(predictions, draws, config)
    text = table({"a": metrics, "b": mean([metrics, metrics])}, config, 20, [("a", "b")])
    auc = f"{metrics['click']['auc'][0]:.4f}"
    assert text.startswith("| task | metric | a | b | b − a |\n|---|---|---|---|---|\n")
    assert f"| click | auc | {auc} | {auc} | +0.0000 [+0.0000, +0.0000] |" in text
    loss = f"{metrics['click']['logloss'][0]:.4f}"
    assert f"| click | logloss | {loss} | {loss} | +0.0000 [+0.0000, +0.0000] |" in text


@pytest.mark.nightly(short="test_table_has_the_paired_difference_of_the_models")
def test_lightgbm_is_chosen_on_the_validation_split_and_scores_the_rows_of_the_run(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightgbm", reason="bench.lock is not installed")
    from benchmarks.counters import boosting

    monkeypatch.setattr(boosting, "GRID", {"num_leaves": (3, 7), "min_data_in_leaf": (50,), "max_ids": (10**9,)})
    config = run.load_config()
    first, second = boosting.boosted_scorers(run, config, tmp_path, seeds=2)
    choices = json.loads((tmp_path / "choices.json").read_text())
    for task in config.tasks:
        losses = {entry["num_leaves"]: entry["loss"] for entry in choices[task.name]["tried"]}
        assert choices[task.name]["choice"]["num_leaves"] == min(losses, key=losses.__getitem__)

    (scorer,) = run_scorers(run)
    rows = scorer.log_range(None)
    trees, again, ranker = predict(first, rows), predict(second, rows), predict(scorer, rows)
    np.testing.assert_array_equal(trees.positions, ranker.positions)
    tasks = range(len(config.tasks))
    differs = [not np.array_equal(trees.outputs.column(i), again.outputs.column(i)) for i in tasks]
    assert any(differs), "the seeds differ"
    metrics = measured(trees, UnitDraws(trees.units, 0), config)
    assert metrics["click"]["auc"][0] > 0.6
    assert metrics["watch_time"]["rmse"][0] < np.nanstd(trees.labels.column(config.task_names.index("watch_time")))

    monkeypatch.setattr(boosting, "train_models", lambda *_: pytest.fail("finished models are used again"))
    repeated, _ = boosting.boosted_scorers(run, config, tmp_path, seeds=2)
    outputs = predict(repeated, rows).outputs
    for i in tasks:
        np.testing.assert_array_equal(outputs.column(i), trees.outputs.column(i))
