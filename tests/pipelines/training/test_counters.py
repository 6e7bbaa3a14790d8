"""Training with counters and histories."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from pipelines.evaluation.evaluate import evaluate_all
from pipelines.evaluation.sources import resolve_scorers
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from ranking.counters.features import DerivedFeatures
from tests.pipelines.conftest import Shop

COUNTERS = [
    {"of": ["user_id"], "labels": ["click"], "delay": "1h"},
    {"of": ["item_id"], "labels": ["click", "watch"]},
    {"of": ["user_id", "tags"], "labels": ["click"], "window": "3d"},
]
HISTORIES = [{"of": "item_id", "label": "click", "max_length": 5, "name": "clicked"}]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = Shop(tmp_path_factory.mktemp("counters") / "shop")
    table = shop.table(2_000)
    shop.write(table.slice(0, 1_200), "a/part-0.parquet", row_group_size=500)
    shop.write(table.slice(1_200), "b/part-0.parquet")
    return shop


@pytest.fixture(scope="module")
def run(shop: Shop) -> RunFolder:
    return train(shop.config(counters=COUNTERS, histories=HISTORIES), shop.folder / "run")


def test_run_holds_the_columns_and_the_state(run: RunFolder) -> None:
    config = run.load_config()
    table = pq.read_table(run.features / "files" / "a" / "part-0.parquet")
    assert set(table.column_names) == {feature.name for feature in config.training_schema.derived}
    assert pq.read_metadata(run.features / "files" / "a" / "part-0.parquet").num_row_groups == 3
    derived = DerivedFeatures.open(run.counters, config.training_schema)
    assert derived.clock is not None
    assert len(derived.counters["item_id"].rows) == 30


def test_evaluation_of_the_run_equals_that_of_its_training(run: RunFolder) -> None:
    evaluation = evaluate_all(resolve_scorers(run.path))
    assert json.loads(json.dumps(evaluation)) == run.load_evaluation()
