"""Rows by the value of a feature."""

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
from pipelines.evaluation.run_sources import run_scorers
from pipelines.evaluation.slices import SHOWN, make_slice
from pipelines.evaluation.sources import bundle_scorer
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from ranking.encoding.columns import fill_features
from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.schema import Schema
from tests.conftest import RAW_SCHEMA
from tests.pipelines.conftest import Shop

SCHEMA = Schema.model_validate(RAW_SCHEMA)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    fitter = EncoderFitter(SCHEMA)
    fitter.add(fill_features(pa.table({"user_id": ["a", "b", "c"], "item_id": [1, 2, 3]}), SCHEMA, {}))
    return fitter.encoder()


def sliced(encoder: Encoder, name: str, *batches: dict[str, Any]) -> dict[str, list[int]]:
    """Value → positions of its rows, of batches that come one after the other."""
    found = make_slice(name, encoder)
    for batch in batches:
        table = fill_features(pa.table(batch), encoder.schema, {})
        found.add(table, encoder.encode(table))
    return {value: rows.tolist() for value, rows in found.groups().items()}


class TestCategories:
    def test_are_sliced_by_value_most_frequent_first(self, encoder: Encoder) -> None:
        found = sliced(encoder, "tab", {"tab": [3, 1, 1]}, {"tab": [2, 3, 1]})
        assert found == {"1": [1, 2, 5], "3": [0, 4], "2": [3]}
        assert list(found) == ["1", "3", "2"]

    def test_have_their_nulls_last_as_missing(self, encoder: Encoder) -> None:
        nothing = {"tab": pa.nulls(2)}
        found = sliced(encoder, "tab", {"tab": [None, 1]}, nothing)
        assert found == {"1": [1], "missing": [0, 2, 3]}

    def test_beyond_the_most_frequent_are_the_rest(self, encoder: Encoder) -> None:
        values = [value for value in range(SHOWN) for _ in range(2)] + [97, 98, 99]
        found = sliced(encoder, "tab", {"tab": values})
        assert len(found) == SHOWN + 1
        assert found["other"] == [2 * SHOWN, 2 * SHOWN + 1, 2 * SHOWN + 2]

    def test_that_are_called_other_or_missing_stay_apart(self, encoder: Encoder) -> None:
        found = sliced(encoder, "user_id", {"user_id": ["other", None, "missing"], "item_id": [1, 1, 1]})
        assert found == {'"missing"': [2], '"other"': [0], "missing": [1]}

    def test_hold_every_row_once(self, encoder: Encoder) -> None:
        random = np.random.default_rng(0)
        values = [None if v == 0 else int(v) for v in random.integers(0, 40, 500)]
        found = sliced(encoder, "tab", {"tab": values[:200]}, {"tab": values[200:]})
        assert sorted(row for rows in found.values() for row in rows) == list(range(500))


class TestNumbers:
    def test_of_few_values_are_sliced_by_value(self, encoder: Encoder) -> None:
        found = sliced(encoder, "age", {"age": [30.0, 0.5, None, 30.0]})
        assert found == {"0.5": [1], "30": [0, 3], "missing": [2]}

    def test_of_many_values_are_cut_into_parts_of_equally_many_rows(self, encoder: Encoder) -> None:
        found = sliced(encoder, "age", {"age": [float(v) for v in range(100)]}, {"age": [None]})
        assert list(found) == ["< 19.8", "19.8 – 39.6", "39.6 – 59.4", "59.4 – 79.2", "≥ 79.2", "missing"]
        assert [len(rows) for rows in found.values()] == [20, 20, 20, 20, 20, 1]

    def test_lie_where_the_shown_edges_say(self, encoder: Encoder) -> None:
        """Quantiles are rounded before the rows are cut, not after."""
        numbers = np.random.default_rng(0).random(300) * 1e-3 + 5
        found = sliced(encoder, "age", {"age": numbers})
        for name, rows in found.items():
            low, _, high = name.partition(" – ")
            if high:
                assert all(float(low) <= numbers[row] < float(high) for row in rows)
        assert sum(map(len, found.values())) == 300


class TestKinds:
    def test_are_those_of_one_id_or_number_that_scoring_knows(self) -> None:
        more = [
            {"name": "age_band", "kind": "buckets", "owner": "user", "column": "age", "count": 4},
            {"name": "both", "kind": "cross", "of": ["user_id", "tab"], "hash_buckets": 9},
            {"name": "seen", "kind": "sequence", "owner": "user"},
            {"name": "position", "kind": "numeric", "owner": "context", "training_only": True},
        ]
        schema = Schema.model_validate({**RAW_SCHEMA, "features": [*RAW_SCHEMA["features"], *more]})
        assert schema.sliceable == [*SCHEMA.sliceable[:-2], "age_band", "new_user", "new_item"]

    def test_buckets_are_sliced_as_the_numbers_they_are_made_of(self) -> None:
        bands = {"name": "age", "kind": "buckets", "owner": "user", "boundaries": [30.0]}
        features = [bands if feature["name"] == "age" else feature for feature in RAW_SCHEMA["features"]]
        schema = Schema.model_validate({**RAW_SCHEMA, "features": features})
        fitter = EncoderFitter(schema)
        fitter.add(fill_features(pa.table({"user_id": ["a"], "item_id": [1]}), schema, {}))
        assert sliced(fitter.encoder(), "age", {"age": [20.0, 40.0, None]}) == {"20": [0], "40": [1], "missing": [2]}


class TestNovelty:
    def test_is_whether_training_saw_the_id(self, encoder: Encoder) -> None:
        rows = {"user_id": ["a", "x", None, "c"], "item_id": [9, 1, 2, 8]}
        assert sliced(encoder, "new_user", rows) == {"old": [0, 3], "new": [1], "missing": [2]}
        assert sliced(encoder, "new_item", rows) == {"old": [1, 2], "new": [0, 3]}

    def test_is_unknown_where_ids_are_hashed_or_no_feature(self) -> None:
        hashed = [{**RAW_SCHEMA["features"][0], "hash_buckets": 10}, *RAW_SCHEMA["features"][2:]]
        schema = Schema.model_validate({**RAW_SCHEMA, "features": hashed})
        assert schema.sliceable == ["user_id", "age", "price", "tab"]
        assert SCHEMA.sliceable == ["user_id", "item_id", "age", "price", "tab", "new_user", "new_item"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shop, RunFolder]:
    shop = Shop(tmp_path_factory.mktemp("sliced") / "shop")
    shop.write(shop.table(1000))
    return shop, train(shop.config(evaluation={"slices": ["tab", "new_user"]}), shop.folder / "run")


class TestEvaluations:
    def test_measure_every_task_in_every_slice(self, measured: tuple[Shop, RunFolder]) -> None:
        found = measured[1].load_evaluation()
        assert list(found["slices"]) == ["tab", "new_user"]
        for values in found["slices"].values():
            assert sum(part["rows"] for part in values.values()) == found["rows"]
            for part in values.values():
                assert set(part) == {"rows", "tasks"}
                assert part["tasks"]["click"].keys() in (found["tasks"]["click"].keys(), {"rows"})

    def test_of_one_value_are_those_of_the_whole(self, measured: tuple[Shop, RunFolder]) -> None:
        found = measured[1].load_evaluation()
        assert list(found["slices"]["new_user"]) == ["old"]
        assert found["slices"]["new_user"]["old"]["tasks"] == found["tasks"]

    def test_are_those_of_a_log_of_these_rows_alone(self, measured: tuple[Shop, RunFolder], tmp_path: Path) -> None:
        shop, run = measured
        last_day = shop.table(1000).slice(900)
        pq.write_table(last_day.filter(pc.equal(last_day["tab"], 3)), tmp_path / "tab-3.parquet")
        alone = evaluate_all(run_scorers(run), tmp_path / "tab-3.parquet", [])
        part = run.load_evaluation()["slices"]["tab"]["3"]
        assert part["rows"] == alone["rows"]
        for task, measures in alone["tasks"].items():
            for name, value in measures.items():
                if not name.endswith("_interval"):  # these draw other users
                    assert part["tasks"][task][name] == pytest.approx(value), (task, name)

    def test_take_the_slices_of_the_command_in_place_of_the_configured(self, measured: tuple[Shop, RunFolder]) -> None:
        found = evaluate_all(run_scorers(measured[1]), slices=["age", "new_item", "age"])
        assert list(found["slices"]) == ["age", "new_item"]
        assert evaluate_all(run_scorers(measured[1]), slices=[])["slices"] == {}

    def test_of_a_bundle_are_those_of_its_run(self, measured: tuple[Shop, RunFolder]) -> None:
        shop, run = measured
        freeze_run(run.path, shop.folder / "bundle")
        frozen = evaluate(bundle_scorer(ranking.load(shop.folder / "bundle"), "bundle"), shop.log)["slices"]
        dense = evaluate_all(run_scorers(run), shop.log)["slices"]
        assert frozen.keys() == dense.keys()
        for name, values in dense.items():
            for value, part in values.items():
                assert frozen[name][value]["rows"] == part["rows"]
                auc = part["tasks"]["click"].get("auc")
                assert frozen[name][value]["tasks"]["click"].get("auc") == pytest.approx(auc, abs=1e-4)

    def test_of_single_task_models_are_told_together(self, measured: tuple[Shop, RunFolder]) -> None:
        shop, run = measured
        config = shop.config(model={"gate": {"kind": "single_task"}}, evaluation={"slices": ["tab"]})
        found = train(config, shop.folder / "single").load_evaluation()
        assert found.keys() == run.load_evaluation().keys()
        assert list(found["calibration_curves"]) == ["click"]
        assert found["slices"]["tab"].keys() == run.load_evaluation()["slices"]["tab"].keys()
        for part in found["slices"]["tab"].values():
            assert list(part["tasks"]) == ["click", "watch"]
