"""Logs in several folders: all rows are read, and later folders replace rows with the same request and item."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.reader import LogReader
from pipelines.data.splits import TimeRange
from ranking.errors import LogError
from tests.pipelines.conftest import FIRST_DAY, row_numbers

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


def with_requests(table: pa.Table, requests: pa.Array) -> pa.Table:
    return table.append_column("request_id", requests)


def write_folders(shop: Shop, *tables: pa.Table) -> tuple[Path, ...]:
    folders = tuple(shop.folder / f"folder-{i}" for i in range(len(tables)))
    for folder, table in zip(folders, tables, strict=True):
        folder.mkdir(parents=True)
        pq.write_table(table, folder / "part-0.parquet")
    return folders


def test_rows_of_all_folders_are_read_in_their_order(shop: Shop) -> None:
    table = shop.table(30)
    folders = write_folders(shop, table.slice(20), table.slice(0, 20))
    chunks = list(LogReader(folders, shop.schema, {}).scan())
    assert row_numbers(chunks) == [*range(20, 30), *range(20)]
    assert [chunk.file for chunk in chunks] == [str(folder / "part-0.parquet") for folder in folders]


def test_later_folder_replaces_rows_with_the_same_request_and_item(shop: Shop) -> None:
    table = shop.table(6)
    table = table.set_column(table.column_names.index("item_id"), "item_id", pa.array(["a", "b", "a", "b", "a", "b"]))
    history = with_requests(table, pa.array(["r1", "r1", "r2", "r2", None, None]))
    joined = with_requests(table.slice(0, 3), pa.array(["r1", "r3", "r2"])).set_column(0, "n", pa.array([10, 11, 12]))
    folders = write_folders(shop, history, joined)
    chunks = list(LogReader(folders, shop.schema, {}).scan())
    assert row_numbers(chunks) == [1, 3, 4, 5, 10, 11, 12]
    assert [chunk.replaced for chunk in chunks] == [2, 0]
    assert [chunk.duplicates for chunk in chunks] == [0, 0]


def test_request_and_item_are_equal_as_numbers_and_as_text(shop: Shop) -> None:
    table = shop.table(3)
    numbers = table.set_column(table.column_names.index("item_id"), "item_id", pa.array(["1", "2", "3"]))
    history = with_requests(numbers, pa.array([7.0, None, 9.0]))  # integers as pandas writes them
    folders = write_folders(shop, history, with_requests(numbers, pa.array(["7", "8", "9"])))
    assert [chunk.replaced for chunk in LogReader(folders, shop.schema, {}).scan()] == [2, 0]


def test_a_folder_without_request_ids_keeps_its_rows(shop: Shop) -> None:
    table = shop.table(4)
    folders = write_folders(shop, table, with_requests(table, pa.array(["r1"] * 4)))
    assert row_numbers(LogReader(folders, shop.schema, {}).scan()) == [0, 1, 2, 3] * 2


@settings(max_examples=25)
@given(rows=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["r1", "r2", None]), st.integers(0, 2)), max_size=12))
def test_each_request_and_item_remains_in_its_last_folder(
    tmp_path_factory: pytest.TempPathFactory, shared_shop: Shop, rows: list[tuple[int, str | None, int]]
) -> None:
    folder, table = tmp_path_factory.mktemp("log"), shared_shop.table(max(len(rows), 1)).slice(0, len(rows))
    source, request, item = (pa.array(column) for column in (zip(*rows, strict=True) if rows else ([], [], [])))
    items = pc.cast(item, pa.int64()).cast(pa.string())
    table = table.set_column(table.column_names.index("item_id"), "item_id", items)
    table = with_requests(table, pc.cast(request, pa.string()))
    folders = tuple(folder / str(i) for i in range(3))
    for i, path in enumerate(folders):
        path.mkdir()
        part = table.filter(pc.equal(pc.cast(source, pa.int64()), i))
        pq.write_table(part, path / "part-0.parquet")
    last = {(r, i): s for s, r, i in sorted(rows, key=lambda row: row[0])}
    expected = [n for n, (s, r, i) in enumerate(rows) if r is None or last[r, i] == s]
    reader = LogReader(folders, shared_shop.schema, {})
    assert sorted(row_numbers(reader.scan())) == expected


def test_a_row_is_replaced_also_if_the_other_one_is_outside_the_time_range(shop: Shop) -> None:
    table = with_requests(shop.table(10), pa.array([f"r{i}" for i in range(10)]))  # a row per day
    later = shop.with_value(table.slice(4, 1), "time", 0, FIRST_DAY + timedelta(days=6))
    reader = LogReader(write_folders(shop, table, later), shop.schema, {})
    assert row_numbers(reader.scan(TimeRange(until=FIRST_DAY + timedelta(days=5)))) == [0, 1, 2, 3]
    assert row_numbers(reader.scan(TimeRange(since=FIRST_DAY + timedelta(days=5)))) == [5, 6, 7, 8, 9, 4]


def test_an_empty_folder_among_others_is_a_log_that_has_not_started(shop: Shop) -> None:
    (folder,) = write_folders(shop, shop.table(5))
    (shop.folder / "joined").mkdir()
    assert row_numbers(LogReader((folder, shop.folder / "joined"), shop.schema, {}).scan()) == list(range(5))


def test_folders_without_any_file_are_an_error(shop: Shop) -> None:
    folders = shop.folder / "a", shop.folder / "b"
    for folder in folders:
        folder.mkdir()
    with pytest.raises(LogError, match=f"{folders[0]}, {folders[1]}: contain no Parquet file"):
        LogReader(folders, shop.schema, {})


def test_a_missing_folder_is_named(shop: Shop) -> None:
    (folder,) = write_folders(shop, shop.table(5))
    with pytest.raises(LogError, match=f"{shop.folder / 'joind'}: no such log"):
        LogReader((folder, shop.folder / "joind"), shop.schema, {})


def test_a_folder_inside_another_one_is_an_error(shop: Shop) -> None:
    shop.write(shop.table(5), "date=2026-01-01/part-0.parquet")
    with pytest.raises(LogError, match=r"is read twice; name separate locations in logs\.path"):
        LogReader((shop.log, shop.log / "date=2026-01-01"), shop.schema, {})
