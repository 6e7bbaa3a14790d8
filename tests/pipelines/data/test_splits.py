"""Time ranges, and the splits of a log with every type of time column."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config.config import LogsConfig
from pipelines.data.reader import LogReader
from pipelines.data.splits import SPLITS, TimeRange, local_days, local_microseconds, split_range
from pipelines.inspection.profile import profile_log
from ranking.errors import LogError
from ranking.schema import Schema
from tests.pipelines.conftest import FIRST_DAY, row_numbers

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

MORNING = datetime(2026, 1, 5)

TIME_TYPES = {
    "seconds": pa.timestamp("s"),
    "milliseconds": pa.timestamp("ms"),
    "microseconds": pa.timestamp("us"),
    "nanoseconds": pa.timestamp("ns"),
    "UTC": pa.timestamp("ms", "UTC"),
    "Shanghai": pa.timestamp("us", "Asia/Shanghai"),
    "date32": pa.date32(),
    "date64": pa.date64(),
}
BOUNDS = st.integers(-5, 55).map(lambda n: MORNING + timedelta(hours=n))


@pytest.fixture(scope="module")
def hourly_logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each time type, a log of 48 rows: one per hour, shuffled."""
    order = np.random.default_rng(0).permutation(48)
    files = {}
    for name, kind in TIME_TYPES.items():
        files[name] = tmp_path_factory.mktemp("hours") / "log.parquet"
        moments = [MORNING + timedelta(hours=int(n)) for n in order]
        if zone := getattr(kind, "tz", None):
            moments = [moment.replace(tzinfo=ZoneInfo(zone)) for moment in moments]
        at = pa.array(moments, kind if pa.types.is_timestamp(kind) else pa.timestamp("ms")).cast(kind, safe=False)
        log = {"n": order, "time": at, "user_id": ["u"] * 48, "item_id": ["v"] * 48, "click": order % 2}
        pq.write_table(pa.table(log), files[name], row_group_size=7)
    return files


@pytest.fixture(scope="module")
def click_schema() -> Schema:
    """Minimal schema: one feature and one task."""
    feature = {"name": "item_id", "kind": "categorical", "owner": "item"}
    return Schema.model_validate({"name": "s", "features": [feature], "tasks": [{"name": "click", "kind": "binary"}]})


@pytest.fixture
def local_time_zone(request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of the local time zone of the process during the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield request.param
    time.tzset()


# Split range.


@given(
    kind=st.sampled_from(sorted(TIME_TYPES)), bounds=st.lists(BOUNDS, min_size=2, max_size=2, unique=True).map(sorted)
)
def test_splits_of_any_time_type_partition_the_log(
    hourly_logs: dict[str, Path], click_schema: Schema, kind: str, bounds: list[datetime]
) -> None:
    logs = LogsConfig(path=hourly_logs[kind], validation_from=bounds[0], test_from=bounds[1])
    reader = LogReader(hourly_logs[kind], click_schema, {})
    rows = {split: set(row_numbers(reader.scan(split_range(logs, split)))) for split in SPLITS}
    assert set().union(*rows.values()) == set(range(48))
    assert sum(map(len, rows.values())) == 48


@given(
    kind=st.sampled_from([k for k in sorted(TIME_TYPES) if not k.startswith("date")]),
    bounds=st.lists(BOUNDS, min_size=2, max_size=2, unique=True).map(sorted),
)
def test_splits_include_their_lower_and_exclude_their_upper_bound(
    hourly_logs: dict[str, Path], click_schema: Schema, kind: str, bounds: list[datetime]
) -> None:
    logs = LogsConfig(path=hourly_logs[kind], validation_from=bounds[0], test_from=bounds[1])
    reader = LogReader(hourly_logs[kind], click_schema, {})
    rows = {split: set(row_numbers(reader.scan(split_range(logs, split)))) for split in SPLITS}
    moment = {n: MORNING + timedelta(hours=n) for n in range(48)}
    assert rows["train"] == {n for n in moment if moment[n] < bounds[0]}
    assert rows["validation"] == {n for n in moment if bounds[0] <= moment[n] < bounds[1]}
    assert rows["test"] == {n for n in moment if moment[n] >= bounds[1]}


@pytest.mark.parametrize("kind", ["date32", "date64"])
def test_bound_on_date_column_selects_whole_days(hourly_logs: dict[str, Path], click_schema: Schema, kind: str) -> None:
    bound = MORNING + timedelta(days=1)
    batches = LogReader(hourly_logs[kind], click_schema, {}).scan(TimeRange(since=bound))
    assert sorted(row_numbers(batches)) == list(range(24, 48))


def test_bound_with_time_zone_is_converted_to_the_column_zone(
    hourly_logs: dict[str, Path], click_schema: Schema
) -> None:
    until = datetime(2026, 1, 5, 18, tzinfo=timezone(timedelta(hours=8)))  # 10:00 UTC
    assert sorted(row_numbers(LogReader(hourly_logs["UTC"], click_schema, {}).scan(TimeRange(until=until)))) == list(
        range(10)
    )


@pytest.mark.parametrize("local_time_zone", ["UTC", "America/New_York"], indirect=True)
@pytest.mark.parametrize("kind", ["Shanghai", "UTC", "milliseconds"])
def test_bound_without_time_zone_is_in_the_zone_of_the_column_in_every_local_time_zone(
    hourly_logs: dict[str, Path], click_schema: Schema, kind: str, local_time_zone: str
) -> None:
    until = datetime(2026, 1, 5, 10)
    assert sorted(row_numbers(LogReader(hourly_logs[kind], click_schema, {}).scan(TimeRange(until=until)))) == list(
        range(10)
    )


@pytest.mark.parametrize(
    ("zone", "bound", "instant"),
    [
        pytest.param("Asia/Shanghai", datetime(2026, 1, 5), "2026-01-04T16:00", id="no daylight saving time"),
        pytest.param("+05:30", datetime(2026, 1, 5), "2026-01-04T18:30", id="fixed offset"),
        pytest.param("America/New_York", datetime(2026, 3, 8), "2026-03-08T05:00", id="midnight before the change"),
        pytest.param("America/New_York", datetime(2026, 3, 9), "2026-03-09T04:00", id="midnight after the change"),
        pytest.param("America/New_York", datetime(2026, 3, 8, 2, 30), "2026-03-08T07:00", id="in the gap"),
        pytest.param("America/New_York", datetime(2026, 11, 1, 1, 30), "2026-11-01T05:30", id="twice, the first"),
        pytest.param("America/Sao_Paulo", datetime(2018, 11, 4), "2018-11-04T03:00", id="midnight in the gap"),
        pytest.param("America/Havana", datetime(2018, 11, 4), "2018-11-04T04:00", id="midnight twice, the first"),
    ],
)
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_bound_without_time_zone_is_local_time_of_the_column(
    zone: str, bound: datetime, instant: str, unit: str
) -> None:
    first = datetime.fromisoformat(instant).replace(tzinfo=UTC)
    times = [first - timedelta(seconds=1), first, first + timedelta(seconds=1)]
    table = pa.table({"time": pa.array(times, pa.timestamp(unit, zone))})
    assert TimeRange(since=bound).select(table, "time").num_rows == 2
    assert TimeRange(until=bound).select(table, "time").num_rows == 1


@pytest.mark.parametrize("kind", ["microseconds", "date32"])
@pytest.mark.parametrize("with_train_from", [False, True])
def test_bound_with_time_zone_on_a_column_without_one_fails(
    hourly_logs: dict[str, Path], click_schema: Schema, kind: str, with_train_from: bool
) -> None:
    start, day = MORNING.replace(tzinfo=UTC), timedelta(days=1)
    train_from = start - day if with_train_from else None
    logs = LogsConfig(path=hourly_logs[kind], train_from=train_from, validation_from=start, test_from=start + day)
    with pytest.raises(LogError, match=r"log\.parquet: column 'time': has no time zone, but the split bound 2026-01-0"):
        profile_log(LogReader(hourly_logs[kind], click_schema, {}), logs, click_schema)


def test_train_split_starts_at_train_from_and_skips_earlier_row_groups(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write(shop.table(100), row_group_size=10)
    logs = shop.logs().model_copy(update={"train_from": FIRST_DAY + timedelta(days=5, hours=12)})
    decoded: list[int] = []
    iter_batches = pq.ParquetFile.iter_batches

    def record_groups(self: pq.ParquetFile, size: int, groups: list[int], *rest: Any, **more: Any) -> Any:
        decoded.extend(groups)
        return iter_batches(self, size, groups, *rest, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", record_groups)
    assert row_numbers(shop.reader().scan(split_range(logs, "train"))) == list(range(55, 80))
    assert decoded == [5, 6, 7]


def test_scan_of_time_range_reports_row_positions_in_the_file(shop: Shop) -> None:
    shop.write(shop.with_value(shop.table(100), "item_id", 57, None), row_group_size=10)
    batches = shop.reader().scan(TimeRange(since=FIRST_DAY + timedelta(days=5, hours=12)))
    assert [row for batch in batches for row in batch.bad["file_row"].to_pylist()] == [57]


def test_row_without_time_is_in_no_split(shop: Shop) -> None:
    shop.write(shop.with_value(shop.table(10), "time", 4, None))
    reader = shop.reader()
    rows = [n for split in SPLITS for n in row_numbers(reader.scan(split_range(shop.logs(), split)))]
    assert sorted(rows) == [n for n in range(10) if n != 4]


def test_time_range_select_on_table_matches_scan_of_log(shop: Shop) -> None:
    table = shop.table(50)
    shop.write(table)
    for split in SPLITS:
        time_range = split_range(shop.logs(), split)
        read = row_numbers(shop.reader().scan(time_range))
        assert time_range.select(table, "time")["n"].to_pylist() == read
        assert time_range.positions(table["time"], "time").tolist() == read
        assert read


@pytest.mark.parametrize("column", ["", "time", "positions of time"])
def test_positions_of_times_do_not_depend_on_the_name_of_their_column(column: str) -> None:
    times = pa.chunked_array([[MORNING, None], [MORNING + timedelta(days=1), MORNING]], pa.timestamp("us"))
    until = TimeRange(until=MORNING + timedelta(hours=1))
    assert until.positions(times, column).tolist() == [0, 3]
    assert until.positions(times, column, nulls=True).tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("kind", "day"),
    [
        (pa.timestamp("us"), date(2026, 1, 9)),
        (pa.timestamp("ms", "Asia/Shanghai"), date(2026, 1, 10)),
        (pa.timestamp("s", "America/New_York"), date(2026, 1, 9)),
        (pa.date32(), date(2026, 1, 9)),
        (pa.date64(), date(2026, 1, 9)),
    ],
)
def test_local_days_are_in_the_time_zone_of_the_column(kind: pa.DataType, day: date) -> None:
    moment = datetime(2026, 1, 9, 17, 30, tzinfo=UTC if getattr(kind, "tz", None) else None)
    times = pa.chunked_array([pa.array([moment.date() if pa.types.is_date(kind) else moment], kind)])
    assert local_days(times).to_pylist() == [day]


def test_local_microseconds_are_in_the_zone_of_the_column() -> None:
    column = pa.chunked_array([pa.array([0], pa.timestamp("s", "Asia/Shanghai"))])
    assert local_microseconds(column).tolist() == [8 * 3600 * 1_000_000]
