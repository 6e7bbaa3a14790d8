"""Parquet files of a log: damaged and missing files, and hive partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.reader import LogReader
from ranking.errors import LogError
from tests.pipelines.conftest import row_numbers, scan_error

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


# Unreadable files.


def test_file_with_fewer_rows_than_its_footer_is_rejected(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    file = shop.write(shop.table(10))
    iter_batches = pq.ParquetFile.iter_batches
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *a, **k: (b.slice(1) for b in iter_batches(*a, **k)))
    assert scan_error(shop).startswith(f"{file}: row group 0 has 9 rows, but its footer says 10; restore the file")


def test_missing_path_is_rejected(shop: Shop) -> None:
    with pytest.raises(LogError, match="no such log; name a Parquet file or a folder of Parquet files") as caught:
        LogReader(shop.log / "nothing", shop.schema, {})
    assert str(caught.value).startswith(f"{shop.log}/nothing: ")


def test_empty_folder_is_rejected(shop: Shop) -> None:
    with pytest.raises(LogError, match="contains no Parquet file") as caught:
        shop.reader()
    assert str(caught.value).startswith(f"{shop.log}: ")


@pytest.mark.parametrize("name", ["part-0.parquet", "part-1.parquet", "part-2.parquet"])
@pytest.mark.parametrize("damage", ["text", "empty", "truncated", "no footer"])
def test_damaged_file_is_named(shop: Shop, name: str, damage: str) -> None:
    table = shop.table(30)
    for i in range(3):
        shop.write(table.slice(10 * i, 10), f"part-{i}.parquet")
    file = shop.log / name
    content = file.read_bytes()
    file.write_bytes(
        {
            "text": b"not Parquet",
            "empty": b"",
            "truncated": content[: len(content) // 2],
            "no footer": content[:-8] + bytes(8),
        }[damage]
    )
    text = scan_error(shop)
    assert str(file) in text
    assert "restore the file or move it away" in text


@pytest.mark.parametrize("name", ["log.csv", "log.CSV.gz", "log.tsv"])
def test_csv_log_is_named_with_the_command_that_converts_it(shop: Shop, name: str) -> None:
    file = shop.folder / name
    file.write_text("time,user_id\n")
    with pytest.raises(LogError) as caught:
        list(LogReader(file, shop.schema, {}).scan())
    assert (
        str(caught.value)
        == f"{file}: is not a Parquet file; 'ranker init' converts a CSV log and CSV tables to Parquet"
    )


def test_file_damaged_in_the_middle_is_named(shop: Shop) -> None:
    shop.write(shop.table(10), "part-0.parquet")
    file = shop.write(shop.table(1000), "part-1.parquet")
    content = bytearray(file.read_bytes())
    content[4 : len(content) // 2] = b"\xff" * (len(content) // 2 - 4)
    file.write_bytes(content)
    text = scan_error(shop)
    assert text.startswith(f"{file}: ")
    assert "restore the file or move it away" in text


def test_files_before_a_damaged_file_are_read(shop: Shop) -> None:
    shop.write(shop.table(10), "part-0.parquet")
    (shop.log / "part-1.parquet").write_text("not Parquet")
    chunks = shop.reader().scan()
    assert next(chunks).rows.num_rows == 10
    with pytest.raises(LogError, match=r"part-1\.parquet"):
        next(chunks)


def test_file_without_rows_is_accepted(shop: Shop) -> None:
    shop.write(shop.table(10).slice(0, 0), "part-0.parquet")
    shop.write(shop.table(10), "part-1.parquet")
    assert row_numbers(shop.reader().scan()) == list(range(10))


# Partitions.


def test_partition_key_can_be_a_feature(shop: Shop) -> None:
    table = shop.table(20).drop_columns(["tab"])
    shop.write(table.slice(0, 12), "tab=1/part-0.parquet")
    shop.write(table.slice(12), "tab=4/part-0.parquet")
    tabs = [tab for chunk in shop.reader().scan() for tab in chunk.rows["tab"].to_pylist()]
    assert tabs == [1] * 12 + [4] * 8


def test_partition_key_can_be_an_id(shop: Shop) -> None:
    shop.write(shop.table(5).drop_columns(["item_id"]), "item_id=v7/part-0.parquet")
    (chunk,) = shop.reader().scan()
    assert chunk.rows["item_id"].to_pylist() == ["v7"] * 5


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()], ids=str)
def test_partition_key_that_is_also_a_column_is_read_once(shop: Shop, kind: pa.DataType) -> None:
    table = shop.table(5)
    tabs = pa.array([3] * 5, kind)
    shop.write(table.set_column(table.column_names.index("tab"), "tab", tabs), "tab=3/part-0.parquet")
    (chunk,) = shop.reader().scan()
    assert chunk.rows["tab"].to_pylist() == [3] * 5


def test_nested_partitions_are_read_in_order(shop: Shop) -> None:
    table = shop.table(12).drop_columns(["tab"])
    for i in range(4):
        shop.write(table.slice(3 * i, 3), f"date=2026-01-0{1 + i // 2}/tab={i % 2}/part-0.parquet")
    chunks = list(shop.reader().scan())
    assert [chunk.rows["tab"][0].as_py() for chunk in chunks] == [0, 1, 0, 1]
    assert row_numbers(chunks) == list(range(12))
