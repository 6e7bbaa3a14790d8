"""Scanning a log: order, duplicates, bad rows and side tables."""

from __future__ import annotations

import json
import threading
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipelines.config.config import LogsConfig
from pipelines.data.parquet import CHUNK_ROWS, LogFile, OpenFile
from pipelines.data.reader import LogReader, load_tables
from pipelines.data.splits import SPLITS, TimeRange, split_range
from ranking.encoding.feature_table import FeatureTable
from ranking.errors import LogError
from tests.pipelines.conftest import row_numbers
from tests.support.waiting import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


# Scan.


def test_scan_of_large_file_yields_ordered_chunks_of_bounded_size(shop: Shop) -> None:
    rows = CHUNK_ROWS * 2 + 10
    small = shop.table(10).take(pa.array(np.arange(rows) % 10)).drop_columns(["tags", "n"])
    table = small.append_column("n", pa.array(range(rows))).append_column("tags", pa.nulls(rows))
    shop.write(table)
    chunks = list(shop.reader().scan())
    assert max(chunk.rows.num_rows for chunk in chunks) <= CHUNK_ROWS
    assert row_numbers(chunks) == list(range(rows))


def test_scan_reads_files_in_order_of_their_names(shop: Shop) -> None:
    table = shop.table(30)
    shop.write(table.slice(20), "date=2026-01-03/part-0.parquet")
    shop.write(table.slice(0, 10), "date=2026-01-01/part-0.parquet")
    shop.write(table.slice(10, 10), "date=2026-01-02/part-0.parquet")
    assert row_numbers(shop.reader().scan()) == list(range(30))


def test_scanned_chunk_names_its_file(shop: Shop) -> None:
    table = shop.table(20)
    files = [shop.write(table.slice(10 * i, 10), f"part-{i}.parquet") for i in range(2)]
    assert [chunk.file for chunk in shop.reader().scan()] == [str(file) for file in files]


def test_scan_of_single_file_reads_its_rows(shop: Shop) -> None:
    file = shop.write(shop.table(10))
    assert row_numbers(LogReader(file, shop.schema, {}).scan()) == list(range(10))


def test_scan_can_be_repeated(shop: Shop) -> None:
    shop.write(shop.table(10))
    reader = shop.reader()
    assert row_numbers(reader.scan()) == row_numbers(reader.scan()) == list(range(10))


def test_scan_keeps_columns_outside_the_schema(shop: Shop) -> None:
    shop.write(shop.table(5).append_column("note", pa.array(list("abcde"))))
    (chunk,) = shop.reader().scan()
    assert chunk.rows["note"].to_pylist() == list("abcde")


def test_scan_ignores_other_files_and_temporary_files_of_writers(shop: Shop) -> None:
    shop.write(shop.table(5), "date=2026-01-01/part-0.parquet")
    (shop.log / "_SUCCESS").touch()
    (shop.log / "_metadata").write_text("not Parquet")
    (shop.log / "date=2026-01-01" / ".part-0.parquet.crc").write_text("not Parquet")
    (shop.log / "date=2026-01-01" / "done").touch()
    (shop.log / "_temporary" / "0").mkdir(parents=True)
    (shop.log / "_temporary" / "0" / "part-1.parquet").write_text("half of a file")
    assert row_numbers(shop.reader().scan()) == list(range(5))


def test_scan_reads_partition_key_that_starts_with_an_underscore(shop: Shop) -> None:
    shop.write(shop.table(5), "_day=1/part-0.parquet")
    assert row_numbers(shop.reader().scan()) == list(range(5))


def test_splits_of_log_in_random_order_contain_every_row(shop: Shop) -> None:
    table = shop.table(60).take(pa.array(np.random.default_rng(0).permutation(60)))
    shop.write(table, row_group_size=7)
    read = [n for split in SPLITS for n in row_numbers(shop.reader().scan(split_range(shop.logs(), split)))]
    assert sorted(read) == list(range(60))


# Duplicates.


def test_duplicates_in_a_file_are_dropped_and_counted(shop: Shop) -> None:
    table = shop.table(10)
    shop.write(pa.concat_tables([table, table.slice(2, 3), table.slice(2, 1)]))
    (chunk,) = shop.reader().scan()
    assert chunk.rows["n"].to_pylist() == list(range(10))
    assert chunk.duplicates == 4


def test_duplicates_across_files_of_a_partition_are_dropped(shop: Shop) -> None:
    table = shop.table(10)
    shop.write(table, "date=2026-01-01/part-0.parquet")
    shop.write(table.slice(5), "date=2026-01-01/part-1.parquet")
    chunks = list(shop.reader().scan())
    assert row_numbers(chunks) == list(range(10))
    assert sum(chunk.duplicates for chunk in chunks) == 5


def test_duplicates_across_chunks_of_a_file_are_dropped(shop: Shop) -> None:
    table = shop.table(10)
    shop.write(pa.concat_tables([table, table, table]), row_group_size=4)
    assert row_numbers(shop.reader().scan()) == list(range(10))


@pytest.mark.parametrize("split", SPLITS)
def test_duplicates_are_dropped_in_every_split(shop: Shop, split: str) -> None:
    table = shop.table(30)
    shop.write(pa.concat_tables([table, table]))
    time_range = split_range(shop.logs(), split)
    assert row_numbers(shop.reader().scan(time_range)) == time_range.select(table, "time")["n"].to_pylist()


def test_duplicates_with_nulls_and_lists_are_dropped(shop: Shop) -> None:
    table = shop.table(4)
    for column in ("age", "price", "tags", "tab", "seconds", "user_id"):
        table = shop.with_value(table, column, 1, None)
    table = shop.with_value(table, "tags", 2, ["red", None])
    shop.write(pa.concat_tables([table, table]))
    assert row_numbers(shop.reader().scan()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("time", datetime(2026, 1, 1, 0, 0, 0, 1)),
        ("user_id", "U0"),
        ("age", None),
        ("price", 1e-300),
        ("tags", ["new", "red"]),
        ("tags", []),
        ("tab", -1),
        ("is_click", None),
        ("seconds", 0.0),
    ],
)
def test_rows_that_differ_in_one_value_are_not_duplicates(shop: Shop, column: str, value: Any) -> None:
    row = shop.with_value(shop.with_value(shop.table(1), "tags", 0, ["red", "new"]), "age", 0, 30.0)
    near = shop.with_value(row, column, 0, value)
    shop.write(pa.concat_tables([row, near]))
    assert row_numbers(shop.reader().scan()) == [0, 0]


def test_scan_without_drop_duplicates_keeps_duplicates(shop: Shop) -> None:
    table = shop.table(10)
    shop.write(pa.concat_tables([table, table]))
    assert row_numbers(shop.reader().scan(drop_duplicates=False)) == [*range(10), *range(10)]


# Differing files.


def test_files_may_differ_in_columns_outside_the_schema(shop: Shop) -> None:
    table = shop.table(20)
    shop.write(table.slice(0, 10), "part-0.parquet")
    shop.write(table.slice(10).append_column("note", pa.array(["new"] * 10)), "part-1.parquet")
    first, second = shop.reader().scan()
    assert row_numbers([first, second]) == list(range(20))
    assert "note" not in first.rows.column_names
    assert second.rows["note"].to_pylist() == ["new"] * 10


def test_files_may_differ_in_column_order(shop: Shop) -> None:
    table = shop.table(20)
    shop.write(table.slice(0, 10), "part-0.parquet")
    shop.write(table.slice(10).select(table.column_names[::-1]), "part-1.parquet")
    assert row_numbers(shop.reader().scan()) == list(range(20))


def test_files_may_differ_in_the_width_of_a_type(shop: Shop) -> None:
    table = shop.table(20)
    shop.write(table.slice(0, 10), "part-0.parquet")
    narrow = table.slice(10).set_column(1, "time", table["time"].slice(10).cast(pa.timestamp("ms"), safe=False))
    narrow = narrow.set_column(5, "price", narrow["price"].cast(pa.float32()))
    shop.write(narrow, "part-1.parquet")
    chunks = list(shop.reader().scan(TimeRange(until=datetime(2027, 1, 1))))
    assert row_numbers(chunks) == list(range(20))
    assert {chunk.rows["price"].type for chunk in chunks} == {pa.float64()}


@pytest.mark.parametrize("name", ["reason", "file", "file_row"])
def test_log_may_have_columns_with_the_names_of_quarantine_fields(shop: Shop, name: str) -> None:
    table = shop.with_value(shop.table(5), "item_id", 2, None).append_column(name, pa.array(list("abcde")))
    shop.write(table)
    (chunk,) = shop.reader().scan()
    assert chunk.rows["n"].to_pylist() == [0, 1, 3, 4]
    assert chunk.bad["reason"].to_pylist() == ["the item id is null"]
    assert chunk.bad["file_row"].to_pylist() == [2]


def test_integer_ids_that_the_text_of_a_side_table_cannot_be_are_rejected(shop: Shop) -> None:
    table = shop.table(4)
    users = pa.array([1, 2, 3, 4])
    file = shop.write(table.set_column(table.column_names.index("user_id"), "user_id", users))

    def scan(ids: list[str], *, labels: bool = True) -> int:
        ages = FeatureTable(pa.table({"user_id": ids, "age": [30.0] * len(ids)}), "user_id")
        chunks = list(shop.reader(tables={"user": ages}, labels=labels).scan())
        return sum(chunk.rows.num_rows for chunk in chunks)

    with pytest.raises(LogError) as caught:
        scan(["u1", "007"])
    reason = "column 'user_id' holds integers, but the users table has text such as 'u1': write the same ids in both"
    assert str(caught.value) == f"{file}: {reason}"
    assert scan(["u1", "3"]) == scan([]) == scan(["u1"], labels=False) == 4


# Bad rows.


def test_bad_row_with_bytes_is_shown_in_base64(shop: Shop) -> None:
    table = shop.with_value(shop.table(2), "item_id", 1, None).append_column("raw", pa.array([b"a", b"b\xff"]))
    shop.write(table)
    (chunk,) = shop.reader().scan()
    assert json.loads(chunk.bad["row"][0].as_py())["raw"] == "Yv8="


def test_bad_row_has_reason_file_and_position(shop: Shop) -> None:
    file = shop.write(shop.with_value(shop.table(10), "price", 7, float("nan")))
    (chunk,) = shop.reader().scan()
    assert chunk.bad.select(["file", "file_row", "reason"]).to_pylist() == [
        {"file": str(file), "file_row": 7, "reason": "feature 'price' is NaN or infinite: write null for unknown"}
    ]
    assert row_numbers([chunk]) == [n for n in range(10) if n != 7]


def test_bad_row_position_counts_dropped_duplicates(shop: Shop) -> None:
    table = shop.table(10)
    shop.write(table, "part-0.parquet")
    repeated = pa.concat_tables([table, table, shop.with_value(shop.table(10, seed=1), "item_id", 3, None)])
    file = shop.write(repeated, "part-1.parquet", row_group_size=6)
    bad = pa.concat_tables([chunk.bad for chunk in shop.reader().scan()])
    assert bad["file"].to_pylist() == [str(file)]
    assert bad["file_row"].to_pylist() == [23]
    row = pq.read_table(file).slice(23, 1)
    assert pc.is_null(row["item_id"])[0].as_py()


def test_bad_row_with_two_faults_is_reported_once(shop: Shop) -> None:
    table = shop.with_value(shop.with_value(shop.table(3), "item_id", 1, None), "is_click", 1, 2)
    shop.write(table)
    (chunk,) = shop.reader().scan()
    assert chunk.bad.num_rows == 1


# Load tables.


def logs(shop: Shop, **sides: Path) -> LogsConfig:
    return shop.logs().model_copy(update=sides)


def test_load_tables_keeps_only_the_columns_of_the_owner(shop: Shop) -> None:
    users = pa.table({"user_id": ["u1", "u2"], "age": [1.0, 2.0], "name": ["A", "B"], "price": [1.0, 2.0]})
    pq.write_table(users, shop.folder / "users.parquet")
    tables = load_tables(logs(shop, users=shop.folder / "users.parquet"), shop.schema)
    assert set(tables) == {"user"}
    assert tables["user"].table.column_names == ["user_id", "age"]


def test_load_tables_of_unreadable_file_names_it(shop: Shop) -> None:
    file = shop.folder / "items.parquet"
    with pytest.raises(LogError, match=r"does not exist; correct or remove logs\.items") as caught:
        load_tables(logs(shop, items=file), shop.schema)
    assert str(caught.value).startswith(f"{file}: ")
    file.write_text("not Parquet")
    with pytest.raises(LogError, match="cannot be read") as caught:
        load_tables(logs(shop, items=file), shop.schema)
    assert str(caught.value).startswith(f"{file}: ")


def test_load_tables_of_csv_file_names_the_command_that_converts_it(shop: Shop) -> None:
    file = shop.folder / "customers.csv"
    file.write_text("user_id,age\nu1,30\n")
    with pytest.raises(LogError) as caught:
        load_tables(logs(shop, users=file), shop.schema)
    assert str(caught.value) == (
        f"{file}: is not a Parquet file; 'ranker init' converts a CSV log and CSV tables to Parquet"
    )


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"user": ["u1"], "age": [1.0]}, "'user_id': the id column is missing"),
        ({"user_id": ["u1", None], "age": [1.0, 2.0]}, "'user_id', row 1: an id is null"),
        ({"user_id": ["u1", "u2", "u1"], "age": [1.0, 2.0, 3.0]}, "id 'u1' occurs twice"),
        ({"user_id": ["u1"], "age": ["young"]}, "'age': holds string, but 'age' is numeric"),
    ],
)
def test_load_tables_of_invalid_table_names_file_and_column(shop: Shop, table: dict[str, list[Any]], says: str) -> None:
    file = shop.folder / "users.parquet"
    pq.write_table(pa.table(table), file)
    with pytest.raises(LogError) as caught:
        load_tables(logs(shop, users=file), shop.schema)
    assert str(caught.value).startswith(f"{file}: column ")
    assert says in str(caught.value)


def test_scan_accepts_dates_as_times(shop: Shop) -> None:
    table = shop.table(10)
    shop.write(table.set_column(1, "time", table["time"].cast(pa.date32(), safe=False)))
    (chunk,) = shop.reader().scan()
    assert chunk.rows["time"].to_pylist() == [date(2026, 1, 1 + i) for i in range(10)]


def test_files_are_compared_with_the_first_even_if_it_is_read_last(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Footers are read by several threads."""
    table = shop.table(20)
    place = table.column_names.index("user_id")
    shop.write(table.set_column(place, "user_id", pa.array(range(20))), "part-0.parquet")
    shop.write(table, "part-1.parquet")
    is_other_read, open_file = threading.Event(), LogFile.open

    def open_first_last(file: LogFile) -> OpenFile:
        if file.name == "part-0.parquet":
            is_other_read.wait(TIMEOUT_SECONDS)
            return open_file(file)
        parquet = open_file(file)
        is_other_read.set()
        return parquet

    monkeypatch.setattr(LogFile, "open", open_first_last)
    with pytest.raises(LogError, match=r"part-1\.parquet: column 'user_id' holds string, but int64 in .*-0\.parquet"):
        shop.reader().check_files()
