"""Tests of ``pipelines.evaluation.slices``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import ranking
from pipelines.evaluation.evaluate import evaluate, evaluate_all
from pipelines.evaluation.slices import MAX_VALUES, make_slice, simulates_absence
from pipelines.evaluation.sources import bundle_scorer, run_scorers
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.feature_table import fill_features
from ranking.schema import Schema
from tests.conftest import RAW_SCHEMA
from tests.pipelines.conftest import Shop

SCHEMA = Schema.model_validate(RAW_SCHEMA)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    fitter = EncoderFitter(SCHEMA)
    fitter.add(fill_features(pa.table({"user_id": ["a", "b", "c"], "item_id": [1, 2, 3]}), SCHEMA, {}))
    return fitter.encoder()


def slice_groups(encoder: Encoder, name: str, *batches: dict[str, Any]) -> dict[str, list[int]]:
    """Return the row indices of each value after adding the batches in order."""
    row_slice = make_slice(name, encoder)
    for batch in batches:
        table = fill_features(pa.table(batch), encoder.schema, {})
        row_slice.add(table, encoder.encode(table))
    return {value: rows.tolist() for value, rows in row_slice.groups().items()}


# Categories.


def test_categorical_slice_orders_values_by_frequency(encoder: Encoder) -> None:
    groups = slice_groups(encoder, "tab", {"tab": [3, 1, 1]}, {"tab": [2, 3, 1]})
    assert groups == {"1": [1, 2, 5], "3": [0, 4], "2": [3]}
    assert list(groups) == ["1", "3", "2"]


def test_categorical_slice_puts_nulls_last_as_missing(encoder: Encoder) -> None:
    nothing = {"tab": pa.nulls(2)}
    groups = slice_groups(encoder, "tab", {"tab": [None, 1]}, nothing)
    assert groups == {"1": [1], "missing": [0, 2, 3]}


def test_categorical_slice_with_many_values_groups_the_rest_as_other(encoder: Encoder) -> None:
    values = [value for value in range(MAX_VALUES) for _ in range(2)] + [97, 98, 99]
    groups = slice_groups(encoder, "tab", {"tab": values})
    assert len(groups) == MAX_VALUES + 1
    assert groups["other"] == [2 * MAX_VALUES, 2 * MAX_VALUES + 1, 2 * MAX_VALUES + 2]


def test_categorical_slice_quotes_values_named_other_or_missing(encoder: Encoder) -> None:
    groups = slice_groups(encoder, "user_id", {"user_id": ["other", None, "missing"], "item_id": [1, 1, 1]})
    assert groups == {'"missing"': [2], '"other"': [0], "missing": [1]}


def test_categorical_slice_contains_every_row_once(encoder: Encoder) -> None:
    random = np.random.default_rng(0)
    values = [None if v == 0 else int(v) for v in random.integers(0, 40, 500)]
    groups = slice_groups(encoder, "tab", {"tab": values[:200]}, {"tab": values[200:]})
    assert sorted(row for rows in groups.values() for row in rows) == list(range(500))


# Numbers.


def test_numeric_slice_with_few_values_groups_by_value(encoder: Encoder) -> None:
    groups = slice_groups(encoder, "age", {"age": [30.0, 0.5, None, 30.0]})
    assert groups == {"0.5": [1], "30": [0, 3], "missing": [2]}


def test_numeric_slice_with_many_values_has_groups_of_equal_size(encoder: Encoder) -> None:
    groups = slice_groups(encoder, "age", {"age": [float(v) for v in range(100)]}, {"age": [None]})
    assert list(groups) == ["< 19.8", "19.8 – 39.6", "39.6 – 59.4", "59.4 – 79.2", "≥ 79.2", "missing"]
    assert [len(rows) for rows in groups.values()] == [20, 20, 20, 20, 20, 1]


def test_numeric_slice_rows_lie_within_the_shown_edges(encoder: Encoder) -> None:
    """Quantiles are rounded before the rows are grouped, not after."""
    numbers = np.random.default_rng(0).random(300) * 1e-3 + 5
    groups = slice_groups(encoder, "age", {"age": numbers})
    for name, rows in groups.items():
        low, _, high = name.partition(" – ")
        if high:
            assert all(float(low) <= numbers[row] < float(high) for row in rows)
    assert sum(map(len, groups.values())) == 300


# Sliceable.


def test_sliceable_contains_single_ids_and_numbers_known_at_serving() -> None:
    more = [
        {"name": "age_band", "kind": "buckets", "owner": "user", "column": "age", "count": 4},
        {"name": "both", "kind": "cross", "of": ["user_id", "tab"], "hash_buckets": 9},
        {"name": "seen", "kind": "sequence", "owner": "user"},
        {"name": "position", "kind": "numeric", "owner": "context", "training_only": True},
    ]
    schema = Schema.model_validate({**RAW_SCHEMA, "features": [*RAW_SCHEMA["features"], *more]})
    assert schema.sliceable == [*SCHEMA.sliceable[:-3], "age_band", "new_user", "new_item", "missing"]


def test_slice_of_a_buckets_feature_groups_by_its_numbers() -> None:
    bands = {"name": "age", "kind": "buckets", "owner": "user", "boundaries": [30.0]}
    features = [bands if feature["name"] == "age" else feature for feature in RAW_SCHEMA["features"]]
    schema = Schema.model_validate({**RAW_SCHEMA, "features": features})
    fitter = EncoderFitter(schema)
    fitter.add(fill_features(pa.table({"user_id": ["a"], "item_id": [1]}), schema, {}))
    assert slice_groups(fitter.encoder(), "age", {"age": [20.0, 40.0, None]}) == {"20": [0], "40": [1], "missing": [2]}


# New users and items.


def test_novelty_slice_separates_ids_seen_in_training(encoder: Encoder) -> None:
    rows = {"user_id": ["a", "x", None, "c"], "item_id": [9, 1, 2, 8]}
    assert slice_groups(encoder, "new_user", rows) == {"old": [0, 3], "new": [1], "missing": [2]}
    assert slice_groups(encoder, "new_item", rows) == {"old": [1, 2], "new": [0, 3]}


def test_sliceable_with_hashed_or_absent_ids_excludes_novelty() -> None:
    hashed = [{**RAW_SCHEMA["features"][0], "hash_buckets": 10}, *RAW_SCHEMA["features"][2:]]
    schema = Schema.model_validate({**RAW_SCHEMA, "features": hashed})
    assert schema.sliceable == ["user_id", "age", "price", "tab", "missing"]
    assert SCHEMA.sliceable == ["user_id", "item_id", "age", "price", "tab", "new_user", "new_item", "missing"]


def test_sliceable_prefers_a_feature_with_the_name_of_another_slice() -> None:
    features = [*RAW_SCHEMA["features"], {"name": "missing", "kind": "numeric", "owner": "item"}]
    schema = Schema.model_validate({**RAW_SCHEMA, "features": features})
    assert sorted(schema.sliceable) == sorted({*schema.sliceable, "missing"})
    assert not simulates_absence("missing", schema)
    assert simulates_absence("missing", SCHEMA)


@pytest.fixture(scope="module")
def run_with_slices(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shop, RunFolder]:
    shop = Shop(tmp_path_factory.mktemp("sliced") / "shop")
    shop.write(shop.table(1000))
    return shop, train(shop.config(evaluation={"slices": ["tab", "new_user"]}), shop.folder / "run")


# Evaluation slices.


def test_evaluation_slices_contain_every_task(run_with_slices: tuple[Shop, RunFolder]) -> None:
    groups = run_with_slices[1].load_evaluation()
    assert list(groups["slices"]) == ["tab", "new_user"]
    for values in groups["slices"].values():
        assert sum(part["rows"] for part in values.values()) == groups["rows"]
        for part in values.values():
            assert set(part) == {"rows", "tasks"}
            assert part["tasks"]["click"].keys() in (groups["tasks"]["click"].keys(), {"rows"})


def test_evaluation_slice_with_one_value_equals_the_whole_evaluation(run_with_slices: tuple[Shop, RunFolder]) -> None:
    groups = run_with_slices[1].load_evaluation()
    assert list(groups["slices"]["new_user"]) == ["old"]
    assert groups["slices"]["new_user"]["old"]["tasks"] == groups["tasks"]


def test_evaluation_slice_equals_an_evaluation_of_its_rows(
    run_with_slices: tuple[Shop, RunFolder], tmp_path: Path
) -> None:
    shop, run = run_with_slices
    last_day = shop.table(1000).slice(900)
    pq.write_table(last_day.filter(pc.equal(last_day["tab"], 3)), tmp_path / "tab-3.parquet")
    expected = evaluate_all(run_scorers(run), tmp_path / "tab-3.parquet", [])
    part = run.load_evaluation()["slices"]["tab"]["3"]
    assert part["rows"] == expected["rows"]
    for task, measures in expected["tasks"].items():
        for name, value in measures.items():
            if not name.endswith("_interval"):  # the bootstrap draws other users
                assert part["tasks"][task][name] == pytest.approx(value), (task, name)


def test_missing_slice_equals_an_evaluation_without_the_features_of_items(
    run_with_slices: tuple[Shop, RunFolder], tmp_path: Path
) -> None:
    shop, run = run_with_slices
    day = shop.table(1000).slice(900)
    nulls = {name: pa.nulls(len(day), day[name].type) for name in ("price", "tags")}
    without = pa.table({name: nulls.get(name, day[name]) for name in day.column_names})
    pq.write_table(without, tmp_path / "without.parquet")
    expected = evaluate_all(run_scorers(run), tmp_path / "without.parquet", [])["tasks"]
    missing = evaluate_all(run_scorers(run), slices=["missing"])["slices"]["missing"]
    assert list(missing) == ["user", "item"]
    assert missing["item"] == {"rows": 100, "tasks": expected}
    assert missing["item"] != missing["user"]


@pytest.mark.nightly(short="test_missing_slice_equals_an_evaluation_without_the_features_of_items")
def test_items_without_a_row_score_like_others_if_training_had_few(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop")
    table = shop.table(1500)
    absent = [i for i in range(1000) if i % 140 == 0]
    for column, value in (("price", None), ("is_click", 0)):
        values = table[column].to_pylist()
        for row in absent:
            values[row] = value
        table = table.set_column(table.column_names.index(column), column, pa.array(values, table[column].type))
    shop.write(table)
    training = {"epochs": 20, "checks_per_epoch": 1, "batch_size": 64, "learning_rate": {"trunk": 1e-2}}
    config = shop.config(evaluation={"slices": ["missing"], "bootstrap": 2}, training=training)
    evaluation = train(config, shop.folder / "run").load_evaluation()
    assert 0.8 < evaluation["slices"]["missing"]["item"]["tasks"]["click"]["calibration"] < 1.25


def test_evaluate_with_slices_replaces_the_configured_slices(run_with_slices: tuple[Shop, RunFolder]) -> None:
    groups = evaluate_all(run_scorers(run_with_slices[1]), slices=["age", "new_item", "age"])
    assert list(groups["slices"]) == ["age", "new_item"]
    assert evaluate_all(run_scorers(run_with_slices[1]), slices=[])["slices"] == {}


def test_evaluation_slices_of_a_bundle_equal_those_of_its_run(run_with_slices: tuple[Shop, RunFolder]) -> None:
    shop, run = run_with_slices
    freeze_run(run.path, shop.folder / "bundle")
    frozen = evaluate(bundle_scorer(ranking.load(shop.folder / "bundle"), "bundle"), shop.log)["slices"]
    dense = evaluate_all(run_scorers(run), shop.log)["slices"]
    assert frozen.keys() == dense.keys()
    for name, values in dense.items():
        for value, part in values.items():
            assert frozen[name][value]["rows"] == part["rows"]
            auc = part["tasks"]["click"].get("auc")
            assert frozen[name][value]["tasks"]["click"].get("auc") == pytest.approx(auc, abs=1e-4)


def test_evaluation_slices_of_a_single_task_run_contain_all_tasks(run_with_slices: tuple[Shop, RunFolder]) -> None:
    shop, run = run_with_slices
    settings = {"training": {"batch_size": 4096}, "evaluation": {"slices": ["tab"]}}
    config = shop.config(model={"gate": {"kind": "single_task"}}, **settings)
    groups = train(config, shop.folder / "single").load_evaluation()
    assert groups.keys() == run.load_evaluation().keys()
    assert list(groups["calibration_curves"]) == ["click"]
    assert groups["slices"]["tab"].keys() == run.load_evaluation()["slices"]["tab"].keys()
    for part in groups["slices"]["tab"].values():
        assert list(part["tasks"]) == ["click", "watch"]
