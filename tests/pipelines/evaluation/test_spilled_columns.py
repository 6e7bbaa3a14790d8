"""Columns in a temporary file."""

from __future__ import annotations

import os
import pickle
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.evaluation.spilled_columns import SpilledColumns
from ranking.encoding.batch import Float32
from ranking.errors import OutputError
from tests.support.spilled import values_of


def spilled(*chunks: Float32) -> SpilledColumns[np.float32]:
    columns = SpilledColumns(np.float32, *chunks[0].shape[1:])
    for chunk in chunks:
        columns.append(chunk)
    return columns


def copied(columns: SpilledColumns[np.float32]) -> SpilledColumns[np.float32]:
    copy: SpilledColumns[np.float32] = pickle.loads(pickle.dumps(columns))
    return copy


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 3))
def test_columns_are_those_of_the_appended_rows(chunks: list[int], width: int, depth: int) -> None:
    rows = np.random.default_rng(0).random((sum(chunks), width, depth), np.float32)
    parts = np.split(rows, np.cumsum(chunks)[:-1])
    assert np.array_equal(values_of(spilled(*parts)), rows)
    extended = spilled(parts[0])
    for part in parts[1:]:
        extended.extend(spilled(part))
    assert np.array_equal(values_of(extended), rows)
    assert np.array_equal(values_of(copied(extended)), rows)
    order = np.random.default_rng(1).permutation(len(rows))[:5]
    assert np.array_equal(values_of(extended.take(order)), rows[order])


def test_rows_can_be_appended_to_a_copy() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    copy = copied(spilled(rows[:4]))
    copy.append(rows[4:])
    assert np.array_equal(values_of(copy), rows)


def test_columns_are_read_by_several_threads() -> None:
    rows = np.random.default_rng(0).random((5_000, 16), np.float32)
    columns = spilled(*np.split(rows, 50))
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(columns.column, list(range(16)) * 10))
    assert all(np.array_equal(column, rows[:, i % 16]) for i, column in enumerate(read))


def test_folder_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(OutputError, match=r"^/nowhere: cannot be written or read \(.*\); free space, or set TMPDIR"):
        SpilledColumns(np.float32, 1)


def test_full_disk_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("w+b", buffering=0))  # noqa: SIM115
    with pytest.raises(OutputError, match=r"No space left on device\); free space"):
        spilled(np.zeros((10, 2), np.float32))


def test_integers_keep_all_digits() -> None:
    ids = np.array([[2**62 + 1, -(2**62)]])
    assert SpilledColumns.of(ids).column(0).tolist() == [2**62 + 1]


def test_system_without_a_folder_for_temporary_files_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(OutputError, match=r"^the folder for temporary files: cannot be .*; free space"):
        SpilledColumns(np.float32, 1)


def test_file_that_is_read_in_parts_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of the system reads and writes at most 2 GiB."""
    read = os.pread
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    columns = spilled(rows)
    monkeypatch.setattr(os, "pread", lambda file, size, start: read(file, min(size, 12), start))
    assert np.array_equal(values_of(copied(columns)), rows)
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    with pytest.raises(OutputError, match="truncated"):
        columns.column(0)
