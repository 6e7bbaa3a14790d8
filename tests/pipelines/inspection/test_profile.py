from __future__ import annotations

import json
import math
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipelines.data.reader import LogReader
from pipelines.inspection.profile import LogProfile, count_days, profile_log
from pipelines.inspection.quality import format_gaps, missing_days, require_learnable
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.row_sample import Positions
from ranking.errors import LogError, OutputError
from ranking.schema import Schema

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

NAN, INF = float("nan"), float("inf")


class Recorder(EncoderFitter):
    """A fitter that remembers the numbers of its rows."""

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        self.numbers: list[int] = []

    def add(self, table: pa.Table, positions: Positions | None = None) -> None:
        self.numbers += table["n"].to_pylist()
        super().add(table, positions)

    def merge(self, part: Self) -> None:
        self.numbers += part.numbers
        super().merge(part)


def profile_table(shop: Shop, table: pa.Table, name: str = "part-0.parquet", **how: Any) -> LogProfile:
    shop.write(table, name)
    return profile_log(shop.reader(), shop.logs(), shop.schema, **how)


def reject_constant(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_null_table_is_aligned_whatever_the_length_of_the_names(shop: Shop) -> None:
    profile = profile_table(shop, shop.table(40))
    profile.nulls.update({"a_feature_with_a_name_of_more_than_24_characters": 40, "short": 3})
    lines = profile.to_text().splitlines()
    rates = lines[lines.index("features with nulls after the look-up:") + 1 :]
    assert len(rates) > 2
    assert len({len(line) for line in rates}) == 1


# Every bad row is written in full, and no other row.


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("age", NAN, "feature 'age' is NaN or infinite: write null for unknown"),
        ("age", INF, "feature 'age' is NaN or infinite: write null for unknown"),
        ("price", -INF, "feature 'price' is NaN or infinite: write null for unknown"),
        ("price", -1.0, "feature 'price' is −1 or less, but its transform is log1p"),
        ("price", -7.5, "feature 'price' is −1 or less, but its transform is log1p"),
        ("is_click", 2, "label 'is_click' is neither 0 nor 1"),
        ("is_click", -1, "label 'is_click' is neither 0 nor 1"),
        ("seconds", NAN, "label 'seconds' is NaN or infinite"),
        ("seconds", INF, "label 'seconds' is NaN or infinite"),
        ("seconds", -1.0, "label 'seconds' is −1 or less, but its transform is log1p"),
        ("time", None, "the time is null"),
        ("item_id", None, "the item id is null"),
    ],
)
def test_bad_row_is_quarantined_with_file_position_and_reason(
    shop: Shop, tmp_path: Path, column: str, value: Any, reason: str
) -> None:
    table = shop.with_value(shop.table(40), column, 23, value)
    file = shop.write(table)
    recorder = Recorder(shop.schema)
    profile = profile_log(shop.reader(), shop.logs(), shop.schema, tmp_path / "bad.jsonl", [recorder])
    (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert set(record) == {"file", "file_row", "reason", "row"}
    assert record["file"] == str(file)
    assert record["file_row"] == 23
    assert record["reason"] == reason
    assert record["row"]["n"] == 23
    assert set(record["row"]) == set(table.column_names)
    assert profile.bad == {reason: 1}
    assert sum(profile.rows.values()) == 39
    assert recorder.numbers == [n for n in range(32) if n != 23]


def test_bad_float_labels_are_counted_by_reason(shop: Shop) -> None:
    table = shop.table(20)
    index = table.column_names.index("is_click")
    clicks = [NAN, 0.5, 1.0, 0.0, None, *[1.0] * 15]
    profile = profile_table(shop, table.set_column(index, "is_click", pa.array(clicks)))
    assert profile.bad == {"label 'is_click' is neither 0 nor 1": 2}


def test_quarantine_record_points_at_the_row_in_its_own_file(shop: Shop, tmp_path: Path) -> None:
    table = shop.table(50)
    bad = {"part-0.parquet": 4, "part-1.parquet": 0, "part-2.parquet": 19}
    for file, row in bad.items():
        shop.write(shop.with_value(table, "item_id", row, None), f"date=2026-01-01/{file}", row_group_size=7)
    profile_log(shop.reader(), shop.logs(), shop.schema, tmp_path / "bad.jsonl")
    records = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert {Path(record["file"]).name: record["file_row"] for record in records} == bad
    for record in records:
        row = pq.read_table(record["file"], partitioning=None).slice(record["file_row"], 1)
        assert row["item_id"][0].as_py() is None
        assert row["n"][0].as_py() == record["row"]["n"]


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_quarantine_is_strict_json_with_nan_and_infinity(shop: Shop, tmp_path: Path, value: float) -> None:
    profile_table(shop, shop.with_value(shop.table(10), "age", 3, value), quarantine=tmp_path / "bad.jsonl")
    for line in (tmp_path / "bad.jsonl").read_text().splitlines():
        assert json.loads(line, parse_constant=reject_constant)["row"]["n"] == 3


def test_quarantine_writes_text_times_and_lists_readably(shop: Shop, tmp_path: Path) -> None:
    table = shop.with_value(shop.table(10), "price", 3, -5.0)
    table = shop.with_value(shop.with_value(table, "tags", 3, ["größe", "new"]), "time", 3, datetime(2026, 1, 2, 3, 4))
    profile_table(shop, table, quarantine=tmp_path / "bad.jsonl")
    (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
    assert "größe" in line
    row = json.loads(line)["row"]
    assert row["tags"] == ["größe", "new"]
    assert row["time"] == "2026-01-02T03:04:00"
    assert row["price"] == -5.0


@pytest.mark.parametrize("name", ["file", "reason", "file_row"])
def test_quarantine_keeps_log_column_with_the_name_of_its_own_field(shop: Shop, tmp_path: Path, name: str) -> None:
    table = shop.with_value(shop.table(10), "price", 3, -5.0).append_column(name, pa.array(list("abcdefghij")))
    file = shop.write(table)
    profile_log(shop.reader(), shop.logs(), shop.schema, tmp_path / "bad.jsonl")
    record = json.loads((tmp_path / "bad.jsonl").read_text())
    assert record["file"] == str(file)
    assert record["file_row"] == 3
    assert record["row"][name] == "d"


def test_quarantine_of_clean_log_is_empty(shop: Shop, tmp_path: Path) -> None:
    profile = profile_table(shop, shop.table(10), quarantine=tmp_path / "bad.jsonl")
    assert not profile.bad
    assert (tmp_path / "bad.jsonl").read_text() == ""


def test_unwritable_quarantine_is_named(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(OutputError) as caught:
        profile_table(shop, shop.table(10), quarantine=tmp_path / "no" / "such" / "folder.jsonl")
    assert str(caught.value).startswith(f"{tmp_path}/no/such/folder.jsonl: ")


# Counts.


def test_profile_counts_rows_by_split(shop: Shop) -> None:
    assert profile_table(shop, shop.table(200)).rows == {"train": 160, "validation": 20, "test": 20}


def test_profile_of_a_time_column_without_a_name_counts_the_same_rows(shop: Shop) -> None:
    shop.write(shop.table(200).rename_columns({"time": ""}))
    config = shop.config(columns={"time": ""})
    schema = config.training_schema
    profile = profile_log(LogReader(shop.log, schema, {}), config.logs, schema)
    assert profile.rows == {"train": 160, "validation": 20, "test": 20}


def test_profile_has_label_statistics_by_split(shop: Shop) -> None:
    table = shop.table(200)
    profile = profile_table(shop, table)
    for split, part in {"train": table.slice(0, 160), "validation": table.slice(160, 20)}.items():
        clicks = profile.labels[split]["click"]
        assert clicks.rows == part.num_rows
        assert clicks.mean == pytest.approx(pc.mean(part["is_click"]).as_py())
        assert (clicks.low, clicks.high) == (0, 1)
        seconds = profile.labels[split]["watch"]
        logs = [math.log1p(value) for value in part["seconds"].drop_null().to_pylist()]
        assert seconds.rows == len(logs) < part.num_rows
        assert seconds.mean == pytest.approx(sum(logs) / len(logs), rel=1e-6)
        assert seconds.low == pytest.approx(min(logs), rel=1e-6)
        assert seconds.high == pytest.approx(max(logs), rel=1e-6)


def test_null_label_is_masked_and_not_zero(shop: Shop) -> None:
    table = shop.table(100)
    clicks = pa.array([None if n % 2 else 1 for n in range(99)] + [0], pa.int8())
    profile = profile_table(shop, table.set_column(table.column_names.index("is_click"), "is_click", clicks))
    assert profile.labels["train"]["click"].rows == 40
    assert profile.labels["train"]["click"].mean == 1.0
    assert not profile.bad
    assert profile.rows["train"] == 80


def test_label_that_is_always_null_has_no_mean(shop: Shop) -> None:
    table = shop.table(100)
    profile = profile_table(shop, table.set_column(table.column_names.index("seconds"), "seconds", pa.nulls(100)))
    assert profile.labels["train"]["watch"].rows == 0
    assert profile.labels["train"]["watch"].mean is None


def test_profile_counts_nulls_by_feature(shop: Shop) -> None:
    table = shop.table(200)
    profile = profile_table(shop, table)
    assert profile.nulls["age"] == table["age"].null_count > 0
    assert profile.nulls["tags"] == table["tags"].null_count > 0
    assert profile.nulls["price"] == 0


def test_duplicates_are_counted_and_in_no_split(shop: Shop) -> None:
    table = shop.table(100)
    profile = profile_table(shop, pa.concat_tables([table, table.slice(10, 7)]))
    assert profile.duplicates == 7
    assert sum(profile.rows.values()) == 100


def test_bad_rows_are_counted_by_reason_and_in_no_split(shop: Shop) -> None:
    table = shop.table(100)
    for row in (1, 2, 3):
        table = shop.with_value(table, "item_id", row, None)
    profile = profile_table(shop, shop.with_value(table, "is_click", 4, 7))
    assert profile.bad == {"the item id is null": 3, "label 'is_click' is neither 0 nor 1": 1}
    assert profile.rows["train"] == 76


def test_encoders_are_fitted_to_the_training_split(shop: Shop) -> None:
    recorder = Recorder(shop.schema)
    profile_table(shop, shop.table(100), fitters=[recorder])
    assert recorder.numbers == list(range(80))


# Missing days.


def message(shop: Shop, days: set[int], **logs: Any) -> str:
    """Return the error for a log of these days of January; "" without an error."""
    table = shop.table(200)
    kept = pc.is_in(pc.day(table["time"]), pa.array(sorted(days), pa.int64()))
    profile = profile_table(shop, table.filter(kept))
    try:
        require_learnable(profile, shop.config(logs=logs))
    except LogError as error:
        return str(error)
    return ""


def test_missing_days_are_listed_with_the_fix(shop: Shop) -> None:
    assert message(shop, {1, 2, 4, 8, 9, 10}) == (
        f"{shop.log}: no usable row on 2026-01-03, 2026-01-05 to 2026-01-07, between 2026-01-01 and 2026-01-10; "
        "restore these days, fix timestamps that are far off, or set logs.allow_missing_days = true"
    )


def test_missing_days_are_accepted_with_allow_missing_days(shop: Shop) -> None:
    assert message(shop, {1, 2, 4, 8, 9, 10}, allow_missing_days=True) == ""


def test_days_before_the_first_and_after_the_last_are_not_missing(shop: Shop) -> None:
    assert message(shop, {3, 4, 5, 6, 7, 8, 9}) == ""


def test_timestamp_far_off_is_reported_as_missing_days(shop: Shop) -> None:
    profile = profile_table(shop, shop.with_value(shop.table(100), "time", 50, datetime(1970, 1, 1)))
    with pytest.raises(LogError, match=r"no usable row on 1970-01-02 to 2025-12-31, between 1970-01-01 and 2026"):
        require_learnable(profile, shop.config())


# Output.


def test_to_json_has_counts_null_rates_and_label_means(shop: Shop) -> None:
    table = shop.with_value(shop.table(100), "item_id", 5, None)
    data = json.loads(json.dumps(profile_table(shop, table).to_json()), parse_constant=reject_constant)
    assert set(data) == {"rows", "duplicates", "replaced", "bad", "label_bounds", "null_rate", "labels"}
    assert data["rows"] == {"train": 79, "validation": 10, "test": 10}
    assert data["bad"] == {"the item id is null": 1}
    assert data["null_rate"]["age"] == pytest.approx(table["age"].null_count / 99, abs=0.011)
    assert set(data["labels"]) == {"train", "validation", "test"}
    assert set(data["labels"]["test"]) == {"click", "watch"}
    assert set(data["labels"]["test"]["click"]) == {"rows", "mean", "low", "high"}


def test_to_text_has_counts_reasons_and_label_means(shop: Shop) -> None:
    table = shop.with_value(shop.table(100), "item_id", 5, None)
    lines = profile_table(shop, pa.concat_tables([table, table.slice(50, 2)])).to_text().splitlines()
    assert lines[0] == "rows: train 79, validation 10, test 10"
    assert "exact duplicates dropped: 2" in lines
    assert "bad rows dropped: 1" in lines
    assert "  1 × the item id is null" in lines
    (click,) = [line for line in lines if line.strip().startswith("click ")]
    assert "train 0." in click
    assert "of 79" in click
    assert any(line.split()[0] == "age" and line.endswith("%") for line in lines)


def test_to_text_shows_the_mean_of_absent_label_as_dash(shop: Shop) -> None:
    table = shop.table(100)
    text = profile_table(
        shop, table.set_column(table.column_names.index("seconds"), "seconds", pa.nulls(100))
    ).to_text()
    (watch,) = [line for line in text.splitlines() if line.strip().startswith("watch ")]
    assert "train – of 0" in watch


def test_to_text_without_nulls_says_none(shop: Shop) -> None:
    table = shop.table(50)
    table = table.filter(pc.and_(table["age"].is_valid(), table["tags"].is_valid()))
    assert profile_table(shop, table).to_text().splitlines()[-1] == "  none"


# Unusable logs.


def test_log_with_only_bad_rows_is_rejected(shop: Shop) -> None:
    table = shop.table(10)
    table = table.set_column(table.column_names.index("is_click"), "is_click", pa.array([2] * 10))
    with pytest.raises(LogError, match=r"no usable row.*neither 0 nor 1.*10") as caught:
        profile_table(shop, table)
    assert str(caught.value).startswith(f"{shop.log}: ")


def test_log_without_rows_is_rejected(shop: Shop) -> None:
    with pytest.raises(LogError, match="the log is empty") as caught:
        profile_table(shop, shop.table(10).slice(0, 0))
    assert str(caught.value).startswith(f"{shop.log}: ")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (slice(80, 100), "nothing to train on"),
        (slice(0, 80), "nothing to validate on; move logs.validation_from or logs.test_from"),
    ],
)
def test_empty_training_or_validation_split_is_rejected(shop: Shop, rows: slice, message: str) -> None:
    profile = profile_table(shop, shop.table(100).slice(rows.start, rows.stop - rows.start))
    with pytest.raises(LogError, match=message) as caught:
        require_learnable(profile, shop.config())
    assert str(caught.value).startswith(f"{shop.log}: ")
    assert "2026-01-09" in str(caught.value)


def test_empty_test_split_is_accepted(shop: Shop) -> None:
    require_learnable(profile_table(shop, shop.table(100).slice(0, 90)), shop.config())


@pytest.mark.parametrize(
    ("label", "values", "message"),
    [
        ("is_click", pa.array([0] * 100), "is 0 in every training row: a constant cannot be learned"),
        ("is_click", pa.array([1] * 80 + [0] * 20), "is 1 in every training row: a constant cannot be learned"),
        ("is_click", pa.array([None] * 80 + [0, 1] * 10), "is null in every training row; drop the task"),
        ("seconds", pa.nulls(100), "is null in every training row; drop the task"),
    ],
)
def test_absent_or_constant_label_is_rejected(shop: Shop, label: str, values: pa.Array, message: str) -> None:
    table = shop.table(100)
    profile = profile_table(shop, table.set_column(table.column_names.index(label), label, values))
    with pytest.raises(LogError) as caught:
        require_learnable(profile, shop.config())
    assert str(caught.value).startswith(f"{shop.log}: label '{label}' of task ")
    assert message in str(caught.value)


@pytest.mark.parametrize("count", [10, 13])
def test_format_gaps_lists_at_most_ten_gaps(count: int) -> None:
    day = date(2026, 1, 1)
    gaps = missing_days(day + timedelta(days=2 * i) for i in range(count + 1))
    assert len(gaps) == count
    assert format_gaps(gaps).count("2026") == 10
    assert format_gaps(gaps).endswith(f" and {count - 10} more gaps") == (count > 10)


def test_count_days_uses_the_time_zone_of_the_column() -> None:
    moments = pa.chunked_array([pa.array([datetime(2026, 1, 1, 20)], pa.timestamp("ms", "Asia/Shanghai"))])
    assert count_days(moments) == {date(2026, 1, 2): 1}
