from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from pipelines.data.index import Chunk, IndexedChunk, LogIndex
from pipelines.data.parquet import CHUNK_ROWS
from pipelines.data.splits import split_range
from pipelines.inspection.profile import profile_log
from ranking.errors import LogError

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


def build_index(shop: Shop, table: pa.Table, name: str = "part-0.parquet") -> LogIndex:
    """Write a file to the log and return the index of the log."""
    shop.write(table, name)
    return profile_log(shop.reader(), shop.logs(), shop.schema).index


# Log index.


def test_index_contains_usable_rows_once_and_positions_of_excluded_rows(shop: Shop) -> None:
    table = shop.with_value(shop.table(100), "item_id", 5, None)
    shop.write(pa.concat_tables([table.slice(0, 50), table.slice(20, 3)]), "part-0.parquet", row_group_size=30)
    shop.write(table.slice(45), "part-1.parquet")
    found = profile_log(shop.reader(), shop.logs(), shop.schema)
    first, second, third = found.index.entries
    assert (first.chunk.file, first.chunk.group, first.chunk.start, first.chunk.rows) == ("part-0.parquet", 0, 0, 30)
    assert first.excluded.tolist() == [5]
    assert second.excluded.tolist() == [20, 21, 22]
    assert third.excluded.tolist() == [0, 1, 2, 3, 4]
    assert third.rows_by_split == {"train": 30, "validation": 10, "test": 10}
    assert {split: found.index.num_rows(split) for split in found.rows} == found.rows


def test_read_indexed_yields_the_same_rows_as_scan(shop: Shop) -> None:
    table = shop.with_value(shop.table(100), "is_click", 83, 5)
    shop.write(pa.concat_tables([table, table.slice(70, 20)]), row_group_size=40)
    reader = shop.reader()
    index = profile_log(reader, shop.logs(), shop.schema).index
    for split in ("train", "validation", "test"):
        read = [
            time
            for entries in index.read_units(split)
            for part in reader.read_indexed(entries, split, shop.logs())
            for time in part["time"].to_pylist()
        ]
        time_range = split_range(shop.logs(), split)
        whole = [time for chunk in reader.scan(time_range) for time in chunk.rows["time"].to_pylist()]
        assert read == whole


def test_index_starts_at_train_from(shop: Shop) -> None:
    shop.write(shop.table(100), row_group_size=8)
    logs = shop.logs().model_copy(update={"train_from": datetime(2026, 1, 6, 12)})
    found = profile_log(shop.reader(), logs, shop.schema)
    assert found.rows == {"train": 25, "validation": 10, "test": 10}
    assert [entry.chunk.group for entry in found.index.read_units("train")[0]] == [6, 7, 8, 9]
    assert found.index.entries[0].rows_by_split == {"train": 1, "validation": 0, "test": 0}


def test_index_round_trips_through_its_file(shop: Shop, tmp_path: Path) -> None:
    table = shop.with_value(shop.table(100), "item_id", 5, None)
    index = build_index(shop, pa.concat_tables([table, table.slice(3, 2)]))
    index.write(tmp_path / "index.parquet")
    (before,), (after,) = index.entries, LogIndex.read(tmp_path / "index.parquet").entries
    assert after.chunk == before.chunk
    assert after.rows_by_split == before.rows_by_split
    assert after.excluded.tolist() == before.excluded.tolist() == [5, 100, 101]


@pytest.mark.parametrize("content", [None, b"", b"not Parquet"])
def test_damaged_index_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "index.parquet"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(LogError, match="train again") as caught:
        LogIndex.read(file)
    assert str(caught.value).startswith(f"{file}: cannot be read")


# Read units.


def units(*chunks: tuple[str, int, int, int]) -> list[list[tuple[str, int, int]]]:
    """Return (file, row group, first row) of the chunks by unit; chunks are (file, row group, first row, rows)."""
    entries = [
        IndexedChunk(Chunk(file, "", group, start, rows), {"train": rows}, np.empty(0, np.int32))
        for file, group, start, rows in chunks
    ]
    return [
        [(e.chunk.file, e.chunk.group, e.chunk.start) for e in unit] for unit in LogIndex(entries).read_units("train")
    ]


def test_read_units_are_row_groups() -> None:
    n = CHUNK_ROWS
    assert units(("a", 0, 0, n), ("a", 0, n, n), ("a", 1, 0, n), ("b", 0, 0, 5)) == [
        [("a", 0, 0), ("a", 0, n)],
        [("a", 1, 0)],
        [("b", 0, 0)],
    ]


def test_read_units_join_small_consecutive_row_groups_of_a_file() -> None:
    half = CHUNK_ROWS // 2
    assert units(("a", 0, 0, half), ("a", 1, 0, half), ("a", 2, 0, 1), ("b", 0, 0, 1)) == [
        [("a", 0, 0), ("a", 1, 0)],
        [("a", 2, 0)],
        [("b", 0, 0)],
    ]


def test_read_units_leave_out_chunks_without_rows_of_the_split() -> None:
    entries = [IndexedChunk(Chunk("a", "", 0, 0, 9), {"train": 0}, np.empty(0, np.int32))]
    assert LogIndex(entries).read_units("train") == []
