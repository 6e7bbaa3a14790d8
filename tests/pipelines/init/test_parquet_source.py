from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.init import parquet_source, sampling
from pipelines.init.source import open_source
from ranking.errors import LogError


def test_parquet_small_log_is_sampled_as_a_whole(tmp_path: Path) -> None:
    for day in (1, 2):
        folder = tmp_path / f"day={day}"
        folder.mkdir()
        pq.write_table(pa.table({"n": range(10 * day, 10 * day + 3)}), folder / "part.parquet")
    sample = open_source(tmp_path).sample
    assert sample.complete
    assert sample.rows.to_pydict() == {"n": [10, 11, 12, 20, 21, 22], "day": [1, 1, 1, 2, 2, 2]}
    assert sample.positions.tolist() == list(range(6))


def test_parquet_large_log_is_sampled_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SAMPLED_ROWS", 8 * sampling.BLOCK_ROWS)
    rows = 100 * sampling.BLOCK_ROWS
    pq.write_table(pa.table({"n": range(rows)}), tmp_path / "log.parquet")
    sample = open_source(tmp_path / "log.parquet").sample
    assert sample.total == rows
    assert not sample.complete
    assert sample.rows.num_rows <= 8 * sampling.BLOCK_ROWS
    assert sample.rows["n"].to_pylist() == sample.positions.tolist() == sorted(sample.positions)
    assert np.ptp(sample.positions) > rows / 2


def test_parquet_log_with_many_row_groups_reads_some_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_source, "MAX_ROW_GROUPS", 3)
    pq.write_table(pa.table({"n": range(100)}), tmp_path / "log.parquet", row_group_size=10)
    sample = open_source(tmp_path / "log.parquet").sample
    assert sample.total == 100
    assert sorted(set(sample.positions // 10)) == [0, 4, 9]
    assert sample.rows["n"].to_pylist() == sample.positions.tolist()


def test_parquet_files_of_different_types_are_rejected(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(LogError, match="files have different types"):
        open_source(tmp_path)


def test_parquet_file_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.parquet").write_bytes(b"PAR1 damaged")
    with pytest.raises(LogError, match=r"log\.parquet: cannot be read"):
        open_source(tmp_path / "log.parquet")


def test_parquet_without_rows_is_rejected(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([], pa.int64())}), tmp_path / "log.parquet")
    with pytest.raises(LogError, match="has no rows"):
        open_source(tmp_path / "log.parquet")
