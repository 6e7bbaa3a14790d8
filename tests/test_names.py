"""Names of users are data: every allowed name of a feature, table, task, counter or history works in every step."""

from __future__ import annotations

import json
import keyword
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fastapi.testclient import TestClient
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import ranking
from pipelines.config.config import Config
from pipelines.data.reader import LogReader
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.join import join
from pipelines.jobs.publish import publish
from pipelines.jobs.train import train
from pipelines.loop.sources import LoopSources
from ranking.frozen.embedding_rows import decoded, encoded
from ranking.model.embeddings import Embeddings
from ranking.schema import Schema
from service.app import create_app
from service.settings import Settings

MODULE_ATTRIBUTES = sorted(name for name in dir(nn.ModuleDict()) if name.isidentifier())
SQL_KEYWORDS = ["all", "by", "case", "desc", "from", "group", "index", "limit", "order", "select", "table", "where"]
COLUMNS = ["day", "event_time", "item_id", "missing", "model", "position", "request_id", "score", "shown", "user_id"]
OTHERS = [
    "dense",
    "expert",
    "features",
    "items",
    "key_0",
    "label_0",
    "row",
    "scale",
    "scores",
    "t",
    "weight",
    "x" * 200,
]
NAMES = [*MODULE_ATTRIBUTES, *keyword.kwlist, *SQL_KEYWORDS, *COLUMNS, *OTHERS]

FEATURES = ["user", "item", "kind", "price", "tags", "recent", "pair", "band"]
TASKS = ["click", "watch"]
ROLES = [
    *FEATURES,
    *TASKS,
    "counter",
    "history",
    "time",
    "user id",
    "item id",
    "user table",
    "item table",
    "kind table",
]
"""Everything in the configuration below that has a name."""

any_name = st.sampled_from(NAMES) | st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,30}", fullmatch=True)


def of_roles(names: Sequence[str]) -> dict[str, str]:
    """Return the names by role."""
    return dict(zip(ROLES, names, strict=True))


def write_log(file: Path, name: dict[str, str], rows: int = 480) -> None:
    """Write a log whose feature and label columns have the names of the features and tasks."""
    random = np.random.default_rng(0)
    start = datetime(2026, 1, 1)
    items = random.integers(0, 20, rows)
    columns = {
        name["time"]: [start + timedelta(minutes=15 * i) for i in range(rows)],
        name["user id"]: random.integers(0, 30, rows),
        name["item id"]: items,
        name["kind"]: random.choice(["a", "b"], rows),
        name["price"]: random.random(rows),
        name["tags"]: [[f"t{item % 3}"] for item in items],
        name["recent"]: [[int(item)] for item in items],
        name["band"]: random.random(rows),
        name["click"]: random.integers(0, 2, rows),
        name["watch"]: random.random(rows),
    }
    pq.write_table(pa.table(columns), file)


def make_config(folder: Path, name: dict[str, str]) -> Config:
    features: list[dict[str, Any]] = [
        {"name": name["user"], "column": name["user id"], "kind": "categorical", "owner": "user", "dim": 4},
        {"name": name["item"], "column": name["item id"], "kind": "categorical", "owner": "item", "dim": 4},
        {"name": name["kind"], "kind": "categorical", "owner": "item", "dim": 4, "table": name["kind table"]},
        {"name": name["price"], "kind": "numeric", "owner": "item"},
        {"name": name["tags"], "kind": "bag", "owner": "item", "dim": 4},
        {"name": name["recent"], "kind": "sequence", "owner": "user", "dim": 4},
        {"name": name["pair"], "kind": "cross", "of": [name["item"], name["kind"]], "hash_buckets": 11, "dim": 4},
        {"name": name["band"], "kind": "buckets", "owner": "context", "boundaries": [0.5], "dim": 4},
    ]
    features[0]["table"] = name["user table"]
    features[1]["table"] = features[5]["table"] = name["item table"]
    days = {"validation_from": datetime(2026, 1, 4), "test_from": datetime(2026, 1, 5)}
    return Config.model_validate(
        {
            "name": "named",
            "logs": {"path": str(folder / "log.parquet"), **days},
            "columns": {"time": name["time"], "user": name["user id"], "item": name["item id"]},
            "features": features,
            "counters": [{"of": [name["item"]], "labels": [name["click"]], "name": name["counter"]}],
            "histories": [{"of": name["item"], "label": name["click"], "name": name["history"]}],
            "tasks": [{"name": name["click"], "kind": "binary"}, {"name": name["watch"], "kind": "regression"}],
            "model": {"experts": 2, "expert_layers": [4], "tower_layers": [4], "gate": {"kind": "dselect_k", "k": 1}},
            "training": {"batch_size": 64, "epochs": 2},
        }
    )


def test_tables_are_named_like_attributes_of_modules() -> None:
    features = [{"name": name, "kind": "categorical", "owner": "item", "dim": 2} for name in MODULE_ATTRIBUTES]
    tasks = [{"name": "click", "kind": "binary"}]
    schema = Schema.model_validate({"name": "named", "features": features, "tasks": tasks})
    embeddings, other = (Embeddings(schema, dict.fromkeys(MODULE_ATTRIBUTES, 3)) for _ in range(2))
    state = embeddings.state_dict()
    assert list(state) == [f"collection.embedding_bags.{name}.weight" for name in MODULE_ATTRIBUTES]
    other.load_state_dict(state)
    assert all(torch.equal(other.weight(name), embeddings.weight(name)) for name in MODULE_ATTRIBUTES)


def test_table_named_like_the_scale_of_rows_is_decoded() -> None:
    weights = {"embedding.scale": np.ones((3, 2), np.float32)}
    assert decoded(encoded(weights, "int8"))["embedding.scale"].tolist() == weights["embedding.scale"].tolist()


@settings(max_examples=1)
@example(of_roles(NAMES[: len(ROLES)]))
@example(
    of_roles(
        [
            "type",
            "values",
            "day",
            "training",
            "apply",
            "keys",
            "update",
            "eval",
            "request_id",
            "shown",
            *ROLES[10:15],
            "items",
            "pop",
            "class",
        ]
    )
)
@given(st.lists(any_name, min_size=len(ROLES), max_size=len(ROLES), unique=True).map(of_roles))
def test_names_of_a_ranker_are_data(name: dict[str, str]) -> None:
    """Protects all steps from a log to a joined log: none uses a name as that of a module, attribute or SQL column."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_log(folder / "log.parquet", name)
        config = make_config(folder, name)
        run = train(config, folder / "run")
        assert set(json.loads(run.evaluation.read_text())["tasks"]) == {name["click"], name["watch"]}
        freeze_run(run.path, folder / "bundle")
        publish(folder / "bundle", folder / "repository")
        request = {
            "request_id": "r",
            "user": {"id": 3, "features": {name["recent"]: [1, 2]}},
            "context": {name["band"]: 0.3},
            "items": {"id": [1, 2, 3], "features": {name["price"]: [0.1, 0.5, None], name["kind"]: ["a", "b", None]}},
            "objective": {name["click"]: 1.0, name["watch"]: 0.5},
        }
        event = {"item": 1, "labels": {name["click"]: 1, name["watch"]: 2.5}}
        stores = {kind: folder / kind for kind in ("served", "feedback")}
        settings = Settings(
            repository=folder / "repository", served_log=stores["served"], feedback_dir=stores["feedback"]
        )
        with TestClient(create_app(settings)) as client:
            response = client.post("/v1/rank", json=request)
            assert response.status_code == 200, response.text
            sent = client.post("/v1/feedback", json={"request_id": "r", "events": [event]})
            assert sent.status_code == 202, sent.text
        served = {item["id"]: item["scores"] for item in response.json()["items"]}
        rows = pa.table(
            {
                name["user id"]: [3] * 3,
                name["item id"]: [1, 2, 3],
                name["price"]: [0.1, 0.5, None],
                name["kind"]: ["a", "b", None],
                name["recent"]: [[1, 2]] * 3,
                name["tags"]: pa.nulls(3, pa.list_(pa.string())),
                name["band"]: [0.3] * 3,
            }
        )
        scores = ranking.load(folder / "bundle").score(rows)
        for task in (name["click"], name["watch"]):
            assert [served[item][task] for item in (1, 2, 3)] == pytest.approx(scores[task].to_pylist(), abs=1e-5)
        joined = folder / "joined"
        join(LoopSources(stores["served"], stores["feedback"]), joined, 60, datetime.now(UTC) + timedelta(hours=1))
        schema = config.training_schema.logged
        (chunk,) = LogReader(str(joined), schema, {}).scan()
        by_item = {row[name["item id"]]: row for row in chunk.rows.to_pylist()}
        assert {item: row[name["kind"]] for item, row in by_item.items()} == {1: "a", 2: "b", 3: None}
        assert {item: row[name["click"]] for item, row in by_item.items()} == {1: 1, 2: 0, 3: 0}
        assert by_item[1][name["watch"]] == 2.5
