"""Counters and histories that the log has from the service are kept; others are computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.counters.columns import write_joined_columns
from pipelines.data.reader import LogReader
from ranking.errors import LogError
from ranking.schema import Schema

SCHEMA = Schema.model_validate(
    {
        "name": "feed",
        "counters": [{"of": ["user_id"], "labels": ["click"], "delay": "0s"}],
        "histories": [{"of": "item_id", "label": "click", "name": "clicked", "delay": "0s"}],
        "features": [
            {"name": "user_id", "kind": "categorical", "owner": "user"},
            {"name": "item_id", "kind": "categorical", "owner": "item"},
        ],
        "tasks": [{"name": "click", "kind": "binary"}],
    }
)
ROWS = 6
COUNT = 0.1 + np.float32(2)
"""A number that has other bits after a conversion."""


def write_log(path: Path, **columns: pa.Array) -> None:
    """Write impressions of one user, all clicked, with further columns."""
    log: dict[str, Any] = {
        "time": pa.array(range(ROWS), pa.timestamp("s")),
        "user_id": ["u"] * ROWS,
        "item_id": [f"v{i}" for i in range(ROWS)],
        "click": [1] * ROWS,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({**log, **columns}), path, row_group_size=2)


def joined(log: Path, folder: Path) -> pa.Table:
    """Return the columns that training adds."""
    folder.mkdir()
    reader = LogReader(log, SCHEMA, {})
    columns = write_joined_columns(reader, SCHEMA, folder)
    tables = [chunk.rows.select(sorted(SCHEMA.counter_columns)) for chunk in reader.with_joined(columns).scan()]
    return pa.concat_tables(tables, promote_options="permissive")


@pytest.fixture
def computed(tmp_path: Path) -> dict[str, list[Any]]:
    """Columns of a log without served values."""
    write_log(tmp_path / "plain" / "a.parquet")
    columns: dict[str, list[Any]] = joined(tmp_path / "plain", tmp_path / "plain_columns").to_pydict()
    return columns


def test_served_values_are_kept_and_other_rows_computed(tmp_path: Path, computed: dict[str, list[Any]]) -> None:
    count = pa.array([None, None, float(COUNT), None, 7.0, None], pa.float32())
    rate = pa.array([None, None, 0.3, 0.7, None, None], pa.float32())
    history = pa.array([None, None, ["x", "y"], [], None, None], pa.large_list(pa.string()))
    write_log(tmp_path / "log" / "a.parquet", user_id_count=count, user_id_click_rate=rate, clicked=history)
    columns = joined(tmp_path / "log", tmp_path / "columns").to_pydict()
    kept = [2, 3, 4]
    for name, values in (("user_id_count", count), ("user_id_click_rate", rate), ("clicked", history)):
        expected = [values[i].as_py() if i in kept else computed[name][i] for i in range(ROWS)]
        assert columns[name] == expected
    assert columns["user_id_age"] == computed["user_id_age"]


def test_numbers_of_the_request_keep_their_precision(tmp_path: Path) -> None:
    write_log(tmp_path / "log" / "a.parquet", user_id_count=pa.array([0.1] * ROWS, pa.float64()))
    assert joined(tmp_path / "log", tmp_path / "columns")["user_id_count"].to_pylist() == [0.1] * ROWS


def test_files_without_the_columns_are_computed(tmp_path: Path, computed: dict[str, list[Any]]) -> None:
    write_log(tmp_path / "log" / "a.parquet")
    empty = pq.read_schema(tmp_path / "log" / "a.parquet").empty_table()
    pq.write_table(empty, tmp_path / "log" / "b.parquet")
    assert joined(tmp_path / "log", tmp_path / "columns").to_pydict() == computed


def test_served_values_of_the_wrong_type_are_named(tmp_path: Path) -> None:
    write_log(tmp_path / "log" / "a.parquet", user_id_count=pa.array(["x"] * ROWS))
    with pytest.raises(LogError, match=r"a\.parquet: column 'user_id_count': holds string"):
        joined(tmp_path / "log", tmp_path / "columns")
