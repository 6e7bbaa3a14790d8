"""Files of the served log: reading them, and scoring the logged candidates again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranking import FrozenRanker
from ranking.encoding.feature_table import fill_features


@dataclass(frozen=True)
class ServedFile:
    """A file of the served log: its metadata and its rows."""

    metadata: dict[str, Any]
    table: pa.Table

    def row(self, request_id: str) -> dict[str, Any]:
        """Return the row of a request, with the sources of each feature column as ``source.COLUMN``."""
        (row,) = self.table.filter(pc.equal(self.table["request_id"], request_id)).to_pylist()
        for owner in ("user", "context", "item"):
            names = [column["name"] for column in self.metadata["columns"] if column["owner"] == owner]
            sources = row.pop(f"source.{owner}", None)
            for i, name in enumerate(names):
                row[f"source.{name}"] = [each[i] for each in sources] if owner == "item" else sources[i]
        return dict(row)


def served_files(folder: Path) -> list[ServedFile]:
    """Read all finished files of a served log, oldest first."""
    tables = [pq.ParquetFile(path).read() for path in sorted(folder.glob("*.parquet"))]
    return [ServedFile(json.loads(table.schema.metadata[b"ranker.served"]), table) for table in tables]


def logged_ids(folder: Path) -> list[str]:
    """Return the ids of all logged requests."""
    return [row for file in served_files(folder) for row in file.table["request_id"].to_pylist()]


def score_again(file: ServedFile, request_id: str, ranker: FrozenRanker) -> npt.NDArray[Any]:
    """Score the candidates of a logged request from the logged values and the bundle's tables [candidates, tasks]."""
    row = file.row(request_id)
    count = len(row["item_id"])
    columns: dict[str, pa.Array] = {ranker.schema.columns.item: to_array(row["item_id"])}
    columns[ranker.schema.columns.user] = to_array([row["user_id"]] * count)
    for column in file.metadata["columns"]:
        label = f"{column['owner']}.{column['name']}"
        if label not in row:  # no request of the file has a value
            continue
        values = row[label]
        columns[column["name"]] = to_array(values if column["owner"] == "item" else [values] * count)
    completed = fill_features(pa.table(columns), ranker.schema, ranker.tables)
    scores, _ = ranker.score_completed(completed, ranker.tasks(row["tasks"]))
    return np.asarray(scores)


def logged_table(file: ServedFile, ranker: FrozenRanker) -> pa.Table:
    """Return the candidates of a file: ids of request, user and item, and the values that scored them, completed."""
    tables = []
    for row in file.table.to_pylist():
        count = len(row["item_id"])
        columns = {name: to_array([row[name]] * count) for name in ("request_id", "user_id")}
        columns["item_id"] = to_array(row["item_id"])
        for column in file.metadata["columns"]:
            values = row.get(f"{column['owner']}.{column['name']}")  # absent if no request has a value
            if values is None:
                continue
            columns[column["name"]] = to_array(values if column["owner"] == "item" else [values] * count)
        tables.append(fill_features(pa.table(columns), ranker.schema, ranker.tables))
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def to_array(values: list[Any]) -> pa.Array:
    return pa.array(values) if any(value is not None for value in values) else pa.nulls(len(values))
