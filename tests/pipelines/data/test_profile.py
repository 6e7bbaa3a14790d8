from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipelines.data.profile import LogProfile, profile_log, require_learnable
from ranking.errors import LogError, OutputError

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

NAN, INF = float("nan"), float("inf")


def surveyed(shop: Shop, table: pa.Table, name: str = "part-0.parquet", **how: Any) -> LogProfile:
    shop.write(table, name)
    return profile_log(shop.reader(), shop.logs(), shop.schema, **how)


def not_json(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


class TestQuarantine:
    """Each bad row lands there whole, and only the bad ones."""

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
            ("seconds", -1.0, "label 'seconds' is −1 or less, but log1p"),
            ("time", None, "the time is null"),
            ("item_id", None, "the item id is null"),
        ],
    )
    def test_a_bad_row_is_named_with_file_position_and_reason_and_the_others_survive(
        self, shop: Shop, tmp_path: Path, column: str, value: Any, reason: str
    ) -> None:
        table = shop.replaced(shop.table(40), column, 23, value)
        file = shop.write(table)
        kept: list[int] = []
        found = profile_log(
            shop.reader(),
            shop.logs(),
            shop.schema,
            tmp_path / "bad.jsonl",
            on_train=lambda rows: kept.extend(rows["n"].to_pylist()),
        )
        (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
        record = json.loads(line)
        assert set(record) == {"file", "file_row", "reason", "row"}
        assert record["file"] == str(file)
        assert record["file_row"] == 23
        assert record["reason"] == reason
        assert record["row"]["n"] == 23
        assert set(record["row"]) == set(table.column_names)
        assert found.bad == {reason: 1}
        assert sum(found.rows.values()) == 39
        assert kept == [n for n in range(32) if n != 23]

    def test_of_a_boolean_or_float_label_knows_the_same_faults(self, shop: Shop) -> None:
        table = shop.table(20)
        index = table.column_names.index("is_click")
        clicks = [NAN, 0.5, 1.0, 0.0, None, *[1.0] * 15]
        found = surveyed(shop, table.set_column(index, "is_click", pa.array(clicks)))
        assert found.bad == {"label 'is_click' is neither 0 nor 1": 2}

    def test_points_at_the_row_in_its_own_file(self, shop: Shop, tmp_path: Path) -> None:
        table = shop.table(50)
        bad = {"part-0.parquet": 4, "part-1.parquet": 0, "part-2.parquet": 19}
        for file, row in bad.items():
            shop.write(shop.replaced(table, "item_id", row, None), f"date=2026-01-01/{file}", row_group_size=7)
        profile_log(shop.reader(), shop.logs(), shop.schema, tmp_path / "bad.jsonl")
        records = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
        assert {Path(record["file"]).name: record["file_row"] for record in records} == bad
        for record in records:
            row = pq.read_table(record["file"], partitioning=None).slice(record["file_row"], 1)
            assert row["item_id"][0].as_py() is None
            assert row["n"][0].as_py() == record["row"]["n"]

    @pytest.mark.parametrize("value", [NAN, INF, -INF])
    def test_holds_strict_json(self, shop: Shop, tmp_path: Path, value: float) -> None:
        surveyed(shop, shop.replaced(shop.table(10), "age", 3, value), quarantine=tmp_path / "bad.jsonl")
        for line in (tmp_path / "bad.jsonl").read_text().splitlines():
            assert json.loads(line, parse_constant=not_json)["row"]["n"] == 3

    def test_shows_text_times_and_lists_as_a_person_reads_them(self, shop: Shop, tmp_path: Path) -> None:
        table = shop.replaced(shop.table(10), "price", 3, -5.0)
        table = shop.replaced(shop.replaced(table, "tags", 3, ["größe", "new"]), "time", 3, datetime(2026, 1, 2, 3, 4))
        surveyed(shop, table, quarantine=tmp_path / "bad.jsonl")
        (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
        assert "größe" in line
        row = json.loads(line)["row"]
        assert row["tags"] == ["größe", "new"]
        assert row["time"] == "2026-01-02T03:04:00"
        assert row["price"] == -5.0

    @pytest.mark.parametrize("name", ["file", "reason", "file_row"])
    def test_keeps_a_column_of_the_log_that_is_named_as_one_of_its_own(
        self, shop: Shop, tmp_path: Path, name: str
    ) -> None:
        table = shop.replaced(shop.table(10), "price", 3, -5.0).append_column(name, pa.array(list("abcdefghij")))
        file = shop.write(table)
        profile_log(shop.reader(), shop.logs(), shop.schema, tmp_path / "bad.jsonl")
        record = json.loads((tmp_path / "bad.jsonl").read_text())
        assert record["file"] == str(file)
        assert record["file_row"] == 3
        assert record["row"][name] == "d"

    def test_is_empty_if_nothing_is_bad(self, shop: Shop, tmp_path: Path) -> None:
        found = surveyed(shop, shop.table(10), quarantine=tmp_path / "bad.jsonl")
        assert not found.bad
        assert (tmp_path / "bad.jsonl").read_text() == ""

    def test_that_cannot_be_written_is_named(self, shop: Shop, tmp_path: Path) -> None:
        with pytest.raises(OutputError) as caught:
            surveyed(shop, shop.table(10), quarantine=tmp_path / "no" / "such" / "folder.jsonl")
        assert str(caught.value).startswith(f"{tmp_path}/no/such/folder.jsonl: ")


class TestCounts:
    def test_rows_by_split(self, shop: Shop) -> None:
        assert surveyed(shop, shop.table(200)).rows == {"train": 160, "validation": 20, "test": 20}

    def test_labels_by_split(self, shop: Shop) -> None:
        table = shop.table(200)
        found = surveyed(shop, table)
        for split, part in {"train": table.slice(0, 160), "validation": table.slice(160, 20)}.items():
            clicks = found.labels[split]["click"]
            assert clicks.rows == part.num_rows
            assert clicks.mean == pytest.approx(pc.mean(part["is_click"]).as_py())
            assert (clicks.low, clicks.high) == (0, 1)
            seconds = found.labels[split]["watch"]
            logs = [math.log1p(value) for value in part["seconds"].drop_null().to_pylist()]
            assert seconds.rows == len(logs) < part.num_rows
            assert seconds.mean == pytest.approx(sum(logs) / len(logs), rel=1e-6)
            assert seconds.low == pytest.approx(min(logs), rel=1e-6)
            assert seconds.high == pytest.approx(max(logs), rel=1e-6)

    def test_a_null_label_is_masked_and_no_zero(self, shop: Shop) -> None:
        table = shop.table(100)
        clicks = pa.array([None if n % 2 else 1 for n in range(99)] + [0], pa.int8())
        found = surveyed(shop, table.set_column(table.column_names.index("is_click"), "is_click", clicks))
        assert found.labels["train"]["click"].rows == 40
        assert found.labels["train"]["click"].mean == 1.0
        assert not found.bad
        assert found.rows["train"] == 80

    def test_a_label_that_is_null_everywhere_has_no_mean(self, shop: Shop) -> None:
        table = shop.table(100)
        found = surveyed(shop, table.set_column(table.column_names.index("seconds"), "seconds", pa.nulls(100)))
        assert found.labels["train"]["watch"].rows == 0
        assert found.labels["train"]["watch"].mean is None

    def test_nulls_by_feature(self, shop: Shop) -> None:
        table = shop.table(200)
        found = surveyed(shop, table)
        assert found.nulls["age"] == table["age"].null_count > 0
        assert found.nulls["tags"] == table["tags"].null_count > 0
        assert found.nulls["price"] == 0

    def test_duplicates_once_and_in_no_split(self, shop: Shop) -> None:
        table = shop.table(100)
        found = surveyed(shop, pa.concat_tables([table, table.slice(10, 7)]))
        assert found.duplicates == 7
        assert sum(found.rows.values()) == 100

    def test_bad_rows_by_reason_and_in_no_split(self, shop: Shop) -> None:
        table = shop.table(100)
        for row in (1, 2, 3):
            table = shop.replaced(table, "item_id", row, None)
        found = surveyed(shop, shop.replaced(table, "is_click", 4, 7))
        assert found.bad == {"the item id is null": 3, "label 'is_click' is neither 0 nor 1": 1}
        assert found.rows["train"] == 76

    def test_only_the_training_split_is_handed_on(self, shop: Shop) -> None:
        rows: list[int] = []
        surveyed(shop, shop.table(100), on_train=lambda part: rows.extend(part["n"].to_pylist()))
        assert rows == list(range(80))


class TestMissingDays:
    @staticmethod
    def says(shop: Shop, days: set[int], **logs: Any) -> str:
        """What is said of a log of these days of January; "" if nothing is."""
        table = shop.table(200)
        kept = pc.is_in(pc.day(table["time"]), pa.array(sorted(days), pa.int64()))
        found = surveyed(shop, table.filter(kept))
        try:
            require_learnable(found, shop.config(logs=logs))
        except LogError as error:
            return str(error)
        return ""

    def test_are_listed_with_the_mend(self, shop: Shop) -> None:
        assert self.says(shop, {1, 2, 4, 8, 9, 10}) == (
            f"{shop.log}: no usable row on 2026-01-03, 2026-01-05 to 2026-01-07, between 2026-01-01 and 2026-01-10; "
            "restore these days, fix times that are far off, or set logs.allow_missing_days = true"
        )

    def test_may_be_allowed(self, shop: Shop) -> None:
        assert self.says(shop, {1, 2, 4, 8, 9, 10}, allow_missing_days=True) == ""

    def test_before_the_first_and_after_the_last_are_none(self, shop: Shop) -> None:
        assert self.says(shop, {3, 4, 5, 6, 7, 8, 9}) == ""

    def test_show_times_that_lie_far_off(self, shop: Shop) -> None:
        found = surveyed(shop, shop.replaced(shop.table(100), "time", 50, datetime(1970, 1, 1)))
        with pytest.raises(LogError, match=r"no usable row on 1970-01-02 to 2025-12-31, between 1970-01-01 and 2026"):
            require_learnable(found, shop.config())


class TestAnswer:
    def test_as_json(self, shop: Shop) -> None:
        table = shop.replaced(shop.table(100), "item_id", 5, None)
        data = json.loads(json.dumps(surveyed(shop, table).to_json()), parse_constant=not_json)
        assert set(data) == {"rows", "duplicates", "bad", "null_rate", "labels"}
        assert data["rows"] == {"train": 79, "validation": 10, "test": 10}
        assert data["bad"] == {"the item id is null": 1}
        assert data["null_rate"]["age"] == pytest.approx(table["age"].null_count / 99, abs=0.011)
        assert set(data["labels"]) == {"train", "validation", "test"}
        assert set(data["labels"]["test"]) == {"click", "watch"}
        assert set(data["labels"]["test"]["click"]) == {"rows", "mean"}

    def test_as_text(self, shop: Shop) -> None:
        table = shop.replaced(shop.table(100), "item_id", 5, None)
        lines = surveyed(shop, pa.concat_tables([table, table.slice(50, 2)])).to_text().splitlines()
        assert lines[0] == "rows: train 79, validation 10, test 10"
        assert "exact duplicates left out: 2" in lines
        assert "bad rows left out: 1" in lines
        assert "  1 × the item id is null" in lines
        (click,) = [line for line in lines if line.strip().startswith("click ")]
        assert "train 0." in click
        assert "of 79" in click
        assert any(line.split()[0] == "age" and line.endswith("%") for line in lines)

    def test_as_text_shows_a_label_that_nobody_has_as_a_dash(self, shop: Shop) -> None:
        table = shop.table(100)
        text = surveyed(shop, table.set_column(table.column_names.index("seconds"), "seconds", pa.nulls(100))).to_text()
        (watch,) = [line for line in text.splitlines() if line.strip().startswith("watch ")]
        assert "train – of 0" in watch

    def test_as_text_says_none_if_no_feature_has_nulls(self, shop: Shop) -> None:
        table = shop.table(50)
        table = table.filter(pc.and_(table["age"].is_valid(), table["tags"].is_valid()))
        assert surveyed(shop, table).to_text().splitlines()[-1] == "  none"


class TestLogsOfNoUse:
    def test_all_rows_bad(self, shop: Shop) -> None:
        table = shop.table(10)
        table = table.set_column(table.column_names.index("is_click"), "is_click", pa.array([2] * 10))
        with pytest.raises(LogError, match=r"no usable row.*neither 0 nor 1.*10") as caught:
            surveyed(shop, table)
        assert str(caught.value).startswith(f"{shop.log}: ")

    def test_no_rows(self, shop: Shop) -> None:
        with pytest.raises(LogError, match="the log is empty") as caught:
            surveyed(shop, shop.table(10).slice(0, 0))
        assert str(caught.value).startswith(f"{shop.log}: ")

    @pytest.mark.parametrize(
        ("rows", "says"),
        [
            (slice(80, 100), "nothing to train on"),
            (slice(0, 80), "nothing to validate on; move logs.validation_from or logs.test_from"),
        ],
    )
    def test_an_empty_split(self, shop: Shop, rows: slice, says: str) -> None:
        found = surveyed(shop, shop.table(100).slice(rows.start, rows.stop - rows.start))
        with pytest.raises(LogError, match=says) as caught:
            require_learnable(found, shop.config())
        assert str(caught.value).startswith(f"{shop.log}: ")
        assert "2026-01-09" in str(caught.value)

    def test_an_empty_test_split_can_be_learnt_from(self, shop: Shop) -> None:
        require_learnable(surveyed(shop, shop.table(100).slice(0, 90)), shop.config())

    @pytest.mark.parametrize(
        ("label", "values", "says"),
        [
            ("is_click", pa.array([0] * 100), "is 0 in every training row: a constant cannot be learnt"),
            ("is_click", pa.array([1] * 80 + [0] * 20), "is 1 in every training row: a constant cannot be learnt"),
            ("is_click", pa.array([None] * 80 + [0, 1] * 10), "is null in every training row; drop the task"),
            ("seconds", pa.nulls(100), "is null in every training row; drop the task"),
        ],
    )
    def test_a_label_that_cannot_be_learnt(self, shop: Shop, label: str, values: pa.Array, says: str) -> None:
        table = shop.table(100)
        found = surveyed(shop, table.set_column(table.column_names.index(label), label, values))
        with pytest.raises(LogError) as caught:
            require_learnable(found, shop.config())
        assert str(caught.value).startswith(f"{shop.log}: label '{label}' of task ")
        assert says in str(caught.value)
