"""Training with features as of the impression: a price that changes at a known time and determines the label."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.cli.main import main
from ranking.artifacts import bundle

FIRST = datetime(2026, 1, 1)
ROWS, ITEMS = 6_000, 40

CONFIG = """
name = "shop"
[logs]
path = "log.parquet"
items = "items.parquet"
validation_from = 2026-01-09
test_from = 2026-01-10
[model]
experts = 2
expert_layers = [16]
tower_layers = [8]
[training]
batch_size = 128
epochs = 2
[evaluation]
baselines = []
bootstrap = 0
[[features]]
name = "item_id"
kind = "categorical"
owner = "item"
[[features]]
name = "sale"
kind = "categorical"
owner = "item"
[[tasks]]
name = "click"
kind = "binary"
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log in which items are clicked while they are on sale; every item changes its state each day at noon."""
    folder = tmp_path_factory.mktemp("shop")
    random = np.random.default_rng(0)
    seconds = np.sort(random.integers(10 * 86_400, size=ROWS))
    items = random.integers(ITEMS, size=ROWS)
    period = (seconds + 43_200) // 86_400
    states = random.random((ITEMS, 11)) < 0.5
    click = random.random(ROWS) < np.where(states[items, period], 0.8, 0.2)
    times = [FIRST + timedelta(seconds=int(second)) for second in seconds]
    log = pa.table({"time": times, "user_id": items % 7, "item_id": items, "click": click.astype(np.int8)})
    pq.write_table(log, folder / "log.parquet")
    rows = [(i, FIRST + timedelta(days=p, hours=-12), states[i, p]) for i in range(ITEMS) for p in range(11)]
    random.shuffle(rows)  # type: ignore[arg-type]
    names = ["item_id", "valid_from", "sale"]
    table = pa.table(dict(zip(names, zip(*[(i, t, int(s)) for i, t, s in rows], strict=True), strict=True)))
    pq.write_table(table, folder / "items.parquet")
    newest = table.filter(pa.array([time == max(table["valid_from"].to_pylist()) for _, time, _ in rows]))
    pq.write_table(newest.drop_columns(["valid_from"]), folder / "newest.parquet")
    (folder / "ranker.toml").write_text(CONFIG)
    return folder


def auc(run: Path) -> float:
    value: float = json.loads((run / "evaluation.json").read_text())["tasks"]["click"]["auc"]
    return value


def test_features_as_of_the_impression_are_trained_and_the_newest_are_published(shop: Path, tmp_path: Path) -> None:
    runs: dict[str, Any] = {}
    for name in ("items", "newest"):
        where = ["--set", f"logs.items={shop / name}.parquet"]
        assert main(["train", str(shop / "ranker.toml"), "--run", str(tmp_path / name), *where]) == 0
        runs[name] = auc(tmp_path / name)
    assert runs["items"] > 0.77  # 0.8 is the best possible AUC
    assert runs["newest"] < 0.7
    assert main(["freeze", str(tmp_path / "items"), "--out", str(tmp_path / "bundle")]) == 0
    published = bundle.load(tmp_path / "bundle").tables["item"].table.sort_by("item_id")
    newest = pq.read_table(shop / "newest.parquet").sort_by("item_id")
    assert published.to_pydict() == newest.to_pydict()
