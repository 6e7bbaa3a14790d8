"""Writing Parquet files in row groups of equal size."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.data.row_group_writer import RowGroupWriter


def numbers(start: int, stop: int) -> pa.Table:
    return pa.table({"n": pa.array(range(start, stop), pa.int64())})


def group_sizes(file: Path) -> list[int]:
    metadata = pq.read_metadata(file)
    return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


def test_write_collects_tables_until_they_fill_a_group(tmp_path: Path) -> None:
    file = tmp_path / "file.parquet"
    with RowGroupWriter(file, 10) as writer:
        for start in range(0, 27, 3):
            writer.write(numbers(start, start + 3))
    assert group_sizes(file) == [10, 10, 7]
    assert pq.read_table(file)["n"].to_pylist() == list(range(27))


def test_writer_passes_options(tmp_path: Path) -> None:
    with RowGroupWriter(tmp_path / "file.parquet", compression="zstd") as writer:
        writer.write(numbers(0, 5))
    assert pq.read_metadata(tmp_path / "file.parquet").row_group(0).column(0).compression == "ZSTD"


def test_writer_of_an_empty_table_writes_its_schema_and_without_tables_no_file(tmp_path: Path) -> None:
    with RowGroupWriter(tmp_path / "empty.parquet") as writer:
        writer.write(numbers(0, 0))
    assert pq.read_table(tmp_path / "empty.parquet") == numbers(0, 0)
    assert group_sizes(tmp_path / "empty.parquet") == []
    with RowGroupWriter(tmp_path / "none.parquet"):
        pass
    assert not (tmp_path / "none.parquet").exists()


def test_writer_after_an_exception_closes_the_file_without_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "file.parquet"

    def fail() -> None:
        with RowGroupWriter(file, 10) as writer:
            writer.write(numbers(0, 10))
            writer.write(numbers(10, 12))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert pq.read_table(file).num_rows == 10


def test_write_table_with_other_columns_raises_and_closes_the_file(tmp_path: Path) -> None:
    file = tmp_path / "file.parquet"
    writer = RowGroupWriter(file, 2)
    writer.write(numbers(0, 2))
    writer.write(pa.table({"m": ["text"]}))
    with pytest.raises(ValueError, match="schema"):
        writer.close()
    assert pq.read_table(file).num_rows == 2
