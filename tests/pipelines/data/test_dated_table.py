"""Side tables with several rows per id: values as of a time, compared with a loop over the rows."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config.config import LogsConfig
from pipelines.data.dated_table import VALID_FROM, DatedFeatureTable, RowDates, feature_table
from pipelines.data.reader import LogReader, load_tables
from ranking.encoding.feature_table import FeatureTable
from ranking.errors import InvalidInputError, LogError
from ranking.schema import Schema

SCHEMA = Schema.model_validate(
    {
        "name": "shop",
        "features": [
            {"name": "user_id", "kind": "categorical", "owner": "user"},
            {"name": "item_id", "kind": "categorical", "owner": "item"},
            {"name": "price", "kind": "numeric", "owner": "item"},
            {"name": "tags", "kind": "bag", "owner": "item"},
        ],
        "tasks": [{"name": "click", "kind": "binary"}],
    }
)
FIRST = datetime(2026, 1, 1)
COLUMNS = ["price", "tags"]


def hour(number: int) -> datetime:
    return FIRST + timedelta(hours=number)


def side_table(rows: list[tuple[Any, int, float | None]], zone: str | None = None) -> pa.Table:
    """Return a side table of items; ``rows`` are the id, the hour from which the row is valid, and the price."""
    times = pa.array([hour(valid_from) for _, valid_from, _ in rows], pa.timestamp("ms"))
    return pa.table(
        {
            "item_id": pa.array([item for item, _, _ in rows]),
            VALID_FROM: times if zone is None else times.cast(pa.timestamp("ms", zone)),
            "price": pa.array([price for _, _, price in rows], pa.float64()),
            "tags": pa.array([[f"tag{price:g}"] if price else None for _, _, price in rows], pa.list_(pa.string())),
        }
    )


def impressions(items: list[Any], hours: list[int], zone: str | None = None) -> pa.Table:
    times = pa.array([hour(h) for h in hours]).cast(pa.timestamp("us", zone))
    return pa.table({"item_id": pa.array(items), "time": times})


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 20)), max_size=30, unique=True),
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 6)), st.integers(-1, 21)), max_size=30),
)
def test_values_equal_the_newest_row_that_is_not_later(
    versions: list[tuple[int, int]], queries: list[tuple[int | None, int]]
) -> None:
    rows = [(item, valid_from, float(i)) for i, (item, valid_from) in enumerate(versions)]
    table = DatedFeatureTable(side_table(rows or [(99, 0, 1.0)]), "item_id", "time")
    log = impressions([item for item, _ in queries] or [None], [time for _, time in queries] or [0])
    expected = []
    for item, time in queries or [(None, 0)]:
        valid = [(valid_from, price) for row_item, valid_from, price in rows if row_item == item and valid_from <= time]
        expected.append(max(valid)[1] if valid else None)
    log = log.set_column(0, "item_id", log["item_id"].cast(pa.int64()))
    assert table.values(log, ["price"])["price"].to_pylist() == expected


def test_row_is_valid_from_exactly_its_time_on() -> None:
    table = DatedFeatureTable(side_table([("a", 5, 2.0), ("a", 1, 1.0)]), "item_id", "time")
    log = impressions(["a", "a", "a", "b"], [0, 4, 5, 9])
    values = table.values(log, COLUMNS)
    assert values["price"].to_pylist() == [None, 1.0, 2.0, None]
    assert values["tags"].to_pylist() == [None, ["tag1"], ["tag2"], None]


def test_table_itself_has_the_row_of_each_id_that_is_valid_now() -> None:
    future = (datetime.now() - FIRST) // timedelta(hours=1) + 24
    table = DatedFeatureTable(
        side_table([("b", future, 9.0), ("a", 1, 1.0), ("a", future, 3.0), ("a", 2, 2.0)]), "item_id", "time"
    )
    assert table.table.to_pydict() == {"item_id": ["a"], "price": [2.0], "tags": [["tag2"]]}
    assert table.values(pa.table({"item_id": ["a", "b"]}), ["price"])["price"].to_pylist() == [2.0, None]


def test_dates_are_midnights_and_zones_are_compared_as_instants() -> None:
    days = side_table([("a", 0, 1.0)]).set_column(1, VALID_FROM, pa.array([date(2026, 1, 2)]))
    table = DatedFeatureTable(days, "item_id", "time")
    assert table.values(impressions(["a", "a"], [23, 24]), ["price"])["price"].to_pylist() == [None, 1.0]
    zoned = DatedFeatureTable(side_table([("a", 5, 1.0)], "UTC"), "item_id", "time")
    log = pa.table({"item_id": ["a", "a"], "time": pa.array([hour(4), hour(5)], pa.timestamp("us", "Asia/Tokyo"))})
    assert zoned.values(log, ["price"])["price"].to_pylist() == [None, 1.0]


@pytest.mark.parametrize(("table_zone", "log_zone"), [("UTC", None), (None, "UTC")])
def test_only_one_time_with_a_zone_is_rejected(table_zone: str | None, log_zone: str | None) -> None:
    table = DatedFeatureTable(side_table([("a", 5, 1.0)], table_zone), "item_id", "time")
    with pytest.raises(InvalidInputError, match="must have a time zone exactly if the time of the log has one"):
        table.values(impressions(["a"], [4], log_zone), ["price"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({VALID_FROM: pa.array([hour(0), None])}, "'valid_from', row 1: is null: every row needs a time"),
        ({VALID_FROM: pa.array([1, 2])}, "'valid_from': holds int64: write timestamps or dates"),
        ({"item_id": pa.array(["a", None])}, "'item_id', row 1: an id is null: every row needs one"),
        (
            {VALID_FROM: pa.array([hour(0), hour(0)])},
            "'item_id', row 1: id 'a' occurs twice with the same valid_from: keep one row per id and time",
        ),
    ],
)
def test_invalid_table_names_column_row_and_fix(change: dict[str, pa.Array], says: str, tmp_path: Path) -> None:
    table = side_table([("a", 0, 1.0), ("a", 1, 2.0)])
    for name, column in change.items():
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, tmp_path / "items.parquet")
    logs = LogsConfig.model_validate(
        {"path": tmp_path, "items": tmp_path / "items.parquet", "validation_from": hour(1), "test_from": hour(2)}
    )
    with pytest.raises(LogError) as error:
        load_tables(logs, SCHEMA)
    assert str(error.value) == f"{tmp_path / 'items.parquet'}: column {says}"


def test_valid_from_that_a_feature_reads_has_no_other_meaning() -> None:
    document = SCHEMA.model_dump(mode="json")
    document["features"].append({"name": VALID_FROM, "kind": "categorical", "owner": "item"})
    table = side_table([("a", 0, 1.0)]).set_column(1, VALID_FROM, pa.array(["spring"]))
    plain = feature_table(table, Schema.model_validate(document), "item")
    assert type(plain) is FeatureTable
    assert plain.table[VALID_FROM].to_pylist() == ["spring"]


def test_reader_completes_rows_as_of_their_time_and_keeps_values_of_the_log(tmp_path: Path) -> None:
    log = pa.table(
        {
            "time": pa.array([hour(3), hour(1), hour(3)]),
            "user_id": [1, 1, 1],
            "item_id": ["a", "a", "a"],
            "price": [None, None, 7.0],
            "click": [0, 1, 0],
        }
    )
    pq.write_table(log, tmp_path / "log.parquet")
    tables: dict[Any, FeatureTable] = {
        "item": DatedFeatureTable(side_table([("a", 2, 2.0), ("a", 0, 1.0)]), "item_id", "time")
    }
    (chunk,) = LogReader(tmp_path / "log.parquet", SCHEMA, tables).scan()
    assert chunk.rows["price"].to_pylist() == [2.0, 1.0, 7.0]
    assert chunk.rows["tags"].to_pylist() == [["tag2"], ["tag1"], ["tag2"]]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=20, unique=True), st.integers(0, 9))
def test_current_rows_are_the_newest_that_are_not_later(rows: list[tuple[int, int]], now: int) -> None:
    dates = RowDates()
    for start in range(0, len(rows), 3):
        ids, times = zip(*rows[start : start + 3], strict=True)
        dates.add(np.array(ids, np.uint64), np.array(times, np.int64))
    newest = {item: max(time for i, time in rows if i == item and time <= now) for item, time in rows if time <= now}
    assert dates.current(now).tolist() == [newest.get(item) == time for item, time in rows]


def test_now_is_utc_for_times_with_a_zone() -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    table = pa.table(
        {"item_id": ["a"], VALID_FROM: pa.array([soon], pa.timestamp("us", "UTC")), "price": [1.0], "tags": [["x"]]}
    )
    assert not len(DatedFeatureTable(table, "item_id", "time"))
