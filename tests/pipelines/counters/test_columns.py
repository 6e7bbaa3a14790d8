"""Columns of counters and histories, compared with a loop over all pairs of impressions."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipelines.counters.columns import belongs_to, joined_columns, write_joined_columns
from pipelines.data.dated_table import DatedFeatureTable
from pipelines.data.joined import JoinedColumns
from pipelines.data.reader import LogReader
from ranking.counters.features import CounterFeatures
from ranking.schema import Schema
from tests.pipelines.counters.naive import Naive, Row

SECOND = 1_000_000
HOUR, DAY = 3_600 * SECOND, 86_400 * SECOND
START = int(datetime(2026, 3, 27).timestamp()) * SECOND
"""Two days before the start of daylight saving time in Berlin."""

MIDNIGHT = START // DAY * DAY
"""Start of a day in UTC."""

SCHEMA = Schema.model_validate(
    {
        "name": "shop",
        "counters": [
            {"of": ["user_id", "tab"], "labels": ["click", "watch"], "delay": "1h", "prior": 3.0},
            {"of": ["tags"], "labels": ["click"], "delay": "0s", "half_life": "6h"},
            {"of": ["item_id"], "labels": ["click"], "window": "2d"},
            {"of": ["user_id", "tags"], "labels": ["watch"], "delay": "30m", "window": "3h"},
            {"name": "daily", "of": ["item_id"], "labels": ["watch", "click"], "half_life": "1d", "as_of": "day"},
            {"name": "recent", "of": ["tags"], "labels": ["click"], "delay": "0s", "window": "1d"},
            {"name": "hours", "of": ["tab"], "labels": ["click"], "window": "5h"},
        ],
        "histories": [
            {"of": "item_id", "label": "click", "max_length": 2, "delay": "1h"},
            {"of": "brand", "label": "click", "value": 0, "max_length": 3},
        ],
        "features": [
            {"name": "user_id", "kind": "categorical", "owner": "user"},
            {"name": "item_id", "kind": "categorical", "owner": "item"},
            {"name": "brand", "kind": "categorical", "owner": "item"},
            {"name": "tab", "kind": "categorical", "owner": "context"},
            {"name": "tags", "kind": "bag", "owner": "item"},
        ],
        "tasks": [
            {"name": "click", "kind": "binary"},
            {"name": "watch", "kind": "regression", "mask": "watched", "max": 100.0},
        ],
    }
)
TYPES = {
    "user_id": pa.int64(),
    "item_id": pa.string(),
    "brand": pa.int64(),
    "tab": pa.int64(),
    "tags": pa.list_(pa.string()),
    "click": pa.int8(),
    "watch": pa.float64(),
    "watched": pa.int8(),
    "n": pa.int64(),
}

times = st.one_of(
    st.integers(0, 100).map(lambda n: START + n * HOUR),
    st.integers(0, 200).map(lambda n: START + n * HOUR // 2 + 1),
)
impressions = st.fixed_dictionaries(
    {
        "time": times,
        "user_id": st.sampled_from([1, 2, None]),
        "item_id": st.sampled_from(["a", "b"]),
        "brand": st.sampled_from([7, 8, None]),
        "tab": st.sampled_from([0, 1, None]),
        "tags": st.sampled_from([["x"], ["x", "y"], ["y", "y", None], [], None]),
        "click": st.sampled_from([0, 1, 1, None, 9]),
        "watch": st.sampled_from([0.5, 20.0, None, 500.0]),
        "watched": st.sampled_from([1, 1, 0, None]),
        "n": st.integers(0, 2),
    }
)


def write_log(folder: Path, rows: list[Row], zone: str | None, files: int) -> None:
    """Write rows to some files with small row groups."""
    size = -(-len(rows) // files)
    for i in range(files):
        part = rows[i * size : (i + 1) * size]
        table = pa.table({name: pa.array([row[name] for row in part], kind) for name, kind in TYPES.items()})
        table = table.append_column("time", pa.array([row["time"] for row in part], pa.timestamp("us", zone)))
        pq.write_table(table, folder / f"part-{i}.parquet", row_group_size=3)


def usable(rows: list[Row]) -> list[Row | None]:
    """Return the rows with masked labels removed; None for bad rows and exact duplicates."""
    seen: list[Row] = []
    result: list[Row | None] = []
    for row in rows:
        bad = row["click"] == 9 or (row["watch"] == 500.0 and row["watched"] == 1)
        result.append(None if bad or row in seen else {**row, "watch": row["watch"] if row["watched"] == 1 else None})
        seen.append(row)
    return result


def joined_rows(folder: Path, log: Path, state: Path | None = None) -> list[dict[str, Any]]:
    """Return the computed columns of each row of the log."""
    joined = write_joined_columns(LogReader(log, SCHEMA, {}), SCHEMA, folder, state)
    files = sorted(log.iterdir())
    return [row for file in files for row in pq.read_table(joined.file(file.name)).to_pylist()]


def expected(naive: Naive, row: Row, now: int, **options: bool) -> dict[str, Any]:
    """Return the values of all features."""
    values: dict[str, Any] = {}
    for counter in SCHEMA.counters:
        values |= dict(zip(counter.columns, naive.values(counter, row, now, **options), strict=True))
    return values | {h.name: naive.history(h, row, now, **options) for h in SCHEMA.histories}


def approx(values: dict[str, Any]) -> dict[str, Any]:
    """Return values to compare with float32 numbers."""
    return {k: pytest.approx(v, rel=1e-6, abs=1e-6) if isinstance(v, float) else v for k, v in values.items()}


@settings(max_examples=settings().max_examples // 4, phases=[Phase.generate])  # shrinking would take minutes
@given(
    st.lists(impressions, min_size=1, max_size=14), st.sampled_from([None, "UTC", "Europe/Berlin"]), st.integers(1, 3)
)
def test_columns_equal_those_of_a_loop(rows: list[Row], zone: str | None, files: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder, log, state = (Path(temporary) / name for name in ("joined", "log", "state"))
        for path in (folder, log, state):
            path.mkdir()
        write_log(log, rows, zone, files)
        clean = usable(rows)
        naive = Naive(SCHEMA, [row for row in clean if row is not None], zone)
        for row, values in zip(clean, joined_rows(folder, log, state), strict=True):
            if row is None:
                assert not any(value is not None for value in values.values())
            else:
                assert values == approx(expected(naive, row, row["time"]))
        if naive.rows:
            check_state(state, naive, zone)


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_columns_of_many_rows_in_no_order_equal_those_of_a_loop(tmp_path: Path, zone: str | None) -> None:
    random = np.random.default_rng(0)
    values: dict[str, list[Any]] = {
        "user_id": [1, 2, None],
        "item_id": ["a", "b", "c"],
        "brand": [7, 8, None],
        "tab": [0, 1, None],
        "tags": [["x"], ["x", "y"], ["y", "y", None], [], None],
        "click": [0, 1, None],
        "watch": [0.5, 20.0, None],
        "watched": [1, 1, 0],
    }
    rows = [
        {name: choices[random.integers(len(choices))] for name, choices in values.items()}
        | {"n": n, "time": START + int(random.integers(96)) * HOUR}
        for n in range(72)
    ]
    log, folder = tmp_path / "log", tmp_path / "joined"
    log.mkdir()
    folder.mkdir()
    write_log(log, rows, zone, files=2)
    naive = Naive(SCHEMA, [row for row in usable(rows) if row is not None], zone)
    for row, computed in zip(naive.rows, joined_rows(folder, log), strict=True):
        assert computed == approx(expected(naive, row, row["time"]))


def test_label_of_the_future_changes_no_earlier_value(tmp_path: Path) -> None:
    row = {"user_id": 1, "item_id": "a", "brand": 7, "tab": 0, "tags": ["x"], "watch": 1.0, "watched": 1}
    rows = [{**row, "n": n, "time": START + n * 2 * HOUR, "click": 0} for n in range(20)]
    results = []
    for name, future in (("a", 0), ("b", 1)):
        log, folder = tmp_path / f"log-{name}", tmp_path / name
        log.mkdir()
        folder.mkdir()
        write_log(log, [*rows[:10], *({**late, "click": future} for late in rows[10:])], None, files=1)
        results.append(joined_rows(folder, log))
    assert results[0][:11] == results[1][:11]
    assert results[0][11:] != results[1][11:]


def test_key_uses_the_attribute_as_of_the_impression(tmp_path: Path) -> None:
    """An item changes its brand; the counter of a brand counts the impressions during which the item had it."""
    times = [datetime(2026, 1, 1, hour) for hour in range(4)]
    log = {"time": times, "user_id": [1] * 4, "item_id": ["a"] * 4, "tab": [0] * 4, "click": [1, 0, 0, 0]}
    pq.write_table(pa.table(log), tmp_path / "log.parquet")
    schema = Schema.model_validate(
        {
            "name": "shop",
            "counters": [{"of": ["brand"], "labels": ["click"], "delay": "0s"}],
            "features": [
                {"name": "user_id", "kind": "categorical", "owner": "user"},
                {"name": "item_id", "kind": "categorical", "owner": "item"},
                {"name": "brand", "kind": "categorical", "owner": "item"},
            ],
            "tasks": [{"name": "click", "kind": "binary"}],
        }
    )
    brands = pa.table({"item_id": ["a", "a"], "valid_from": [times[2], times[0]], "brand": [8, 7]})
    reader = LogReader(tmp_path / "log.parquet", schema, {"item": DatedFeatureTable(brands, "item_id", "time")})
    (tmp_path / "joined").mkdir()
    joined = write_joined_columns(reader, schema, tmp_path / "joined")
    assert pq.read_table(joined.file("log.parquet"))["brand_count"].to_pylist() == [0, 1, 0, 1]


def check_state(folder: Path, naive: Naive, zone: str | None) -> None:
    """Compare the values that the state gives two hours after the last event with those of the loop."""
    now = max(row["time"] for row in naive.rows) + 2 * HOUR
    table = pa.table({name: pa.array([row[name] for row in naive.rows], kind) for name, kind in TYPES.items()})
    table = table.append_column("time", pa.array([now] * len(naive.rows), pa.timestamp("us", zone)))
    table = table.set_column(table.column_names.index("tags"), "tags", table["tags"].cast(pa.large_list(pa.string())))
    completed = CounterFeatures.open(folder, SCHEMA).complete(table)
    for row, values in zip(naive.rows, completed.to_pylist(), strict=True):
        wanted = approx(expected(naive, row, now, everything_known=True))
        assert {name: values[name] for name in wanted} == wanted


def days_log(folder: Path, days: list[int], rows: int = 20) -> list[Row]:
    """Write a folder per day with rows at random times of the day; return all rows in the order of the files."""
    random = np.random.default_rng(5)
    result: list[Row] = []
    for day in days:
        part = [
            {
                "time": MIDNIGHT + day * DAY + int(random.integers(24 * 60)) * 60 * SECOND,
                "user_id": int(random.integers(1, 4)),
                "item_id": str(random.choice(["a", "b", "c"])),
                "brand": int(random.integers(7, 9)),
                "tab": int(random.integers(2)),
                "tags": [["x"], ["x", "y"], ["y"]][random.integers(3)],
                "click": int(random.integers(2)),
                "watch": float(random.integers(60)),
                "watched": 1,
                "n": n,
            }
            for n in range(rows)
        ]
        target = folder / f"date={day}"
        target.mkdir(parents=True)
        write_log(target, part, "UTC", 1)
        result += part
    return result


def columns_of(joined: JoinedColumns, log: Path) -> list[dict[str, Any]]:
    """Return the computed columns of all files of a log."""
    names = sorted(str(file.relative_to(log)) for file in log.rglob("*.parquet"))
    return [row for name in names for row in pq.read_table(joined.file(name), partitioning=None).to_pylist()]


def test_columns_after_a_missing_day_equal_those_of_a_loop(tmp_path: Path) -> None:
    log = tmp_path / "log"
    rows = days_log(log, [0, 1, 3, 4])
    with joined_columns(LogReader(log, SCHEMA, {}), SCHEMA) as joined:
        assert joined is not None
        columns = columns_of(joined, log)
    naive = Naive(SCHEMA, rows, "UTC")
    for row, actual in zip(rows, columns, strict=True):
        assert actual == approx(expected(naive, row, row["time"])), row
    days = {
        day: [c for row, c in zip(rows, columns, strict=True) if (row["time"] - MIDNIGHT) // DAY == day]
        for day in (1, 3, 4)
    }
    counts = {day: [c["item_id_count"] for c in values] for day, values in days.items()}
    assert min(counts[1]) > 0
    assert max(counts[3]) == 0, "the window of two days has the missing day and the day of the impression"
    assert min(counts[4]) > 0
    assert min(c["daily_count"] for c in days[3]) > 0, "a half-life spans the missing day"


def test_log_that_is_read_until_a_time_has_the_columns_and_state_of_a_shorter_log(tmp_path: Path) -> None:
    logs, until = {"whole": [0, 1, 2, 3], "shorter": [0, 1]}, datetime.fromtimestamp((MIDNIGHT + 2 * DAY) / SECOND, UTC)
    states, columns = {}, {}
    for name, days in logs.items():
        log, folder, state = (tmp_path / name / part for part in ("log", "columns", "state"))
        days_log(log, days)
        for path in (folder, state):
            path.mkdir()
        reader = LogReader(log, SCHEMA, {}, until=until)
        joined = write_joined_columns(reader, SCHEMA, folder, state)
        assert belongs_to(joined, reader, SCHEMA)
        assert not belongs_to(joined, LogReader(log, SCHEMA, {}), SCHEMA)
        states[name] = {str(file.relative_to(state)): file.read_bytes() for file in state.rglob("*") if file.is_file()}
        columns[name] = columns_of(joined, log)
    assert states["whole"] == states["shorter"]
    assert columns["whole"][: len(columns["shorter"])] == columns["shorter"]
    assert all(value is None for row in columns["whole"][len(columns["shorter"]) :] for value in row.values())


def test_folder_of_a_log_has_the_columns_of_the_whole_log(tmp_path: Path) -> None:
    log, columns = tmp_path / "log", tmp_path / "columns"
    days_log(log, [0, 1, 2])
    columns.mkdir()
    whole = write_joined_columns(LogReader(log, SCHEMA, {}), SCHEMA, columns)
    day = log / "date=1"
    for part in (day, day / "part-0.parquet"):
        with joined_columns(LogReader(part, SCHEMA, {}), SCHEMA, columns) as joined:
            assert joined is not None
            assert joined.file("part-0.parquet") == whole.file("date=1/part-0.parquet")


def test_changed_or_ambiguous_folder_of_a_log_has_columns_of_its_own(tmp_path: Path) -> None:
    log, columns = tmp_path / "log", tmp_path / "columns"
    days_log(log, [0, 1, 2])
    (log / "date=2" / "part-0.parquet").write_bytes((log / "date=0" / "part-0.parquet").read_bytes())
    columns.mkdir()
    write_joined_columns(LogReader(log, SCHEMA, {}), SCHEMA, columns)
    days_log(tmp_path / "other", [7])
    for part in (log / "date=0", tmp_path / "other" / "date=7"):
        with joined_columns(LogReader(part, SCHEMA, {}), SCHEMA, columns) as joined:
            assert joined is not None
            assert joined.folder != columns
