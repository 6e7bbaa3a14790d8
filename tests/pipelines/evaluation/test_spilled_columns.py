"""Columns in a temporary file."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.evaluation.spilled_columns import SpilledColumns
from ranking.encoding.batch import Float32
from ranking.errors import OutputError


def spilled(*chunks: Float32) -> SpilledColumns:
    columns = SpilledColumns(*chunks[0].shape[1:])
    for chunk in chunks:
        columns.append(chunk)
    return columns


def contents(columns: SpilledColumns, *shape: int) -> Float32:
    """Return the values [rows, ...]."""
    values = [columns.column(*index) for index in np.ndindex(shape)]
    return np.stack(values, 1).reshape(len(columns), *shape)


def copied(columns: SpilledColumns) -> SpilledColumns:
    copy: SpilledColumns = pickle.loads(pickle.dumps(columns))
    return copy


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 3))
def test_columns_are_those_of_the_appended_rows(chunks: list[int], width: int, depth: int) -> None:
    rows = np.random.default_rng(0).random((sum(chunks), width, depth), np.float32)
    parts = np.split(rows, np.cumsum(chunks)[:-1])
    assert np.array_equal(contents(spilled(*parts), width, depth), rows)
    extended = spilled(parts[0])
    for part in parts[1:]:
        extended.extend(spilled(part))
    assert np.array_equal(contents(extended, width, depth), rows)
    assert np.array_equal(contents(copied(extended), width, depth), rows)
    order = np.random.default_rng(1).permutation(len(rows))[:5]
    assert np.array_equal(contents(extended.take(order), width, depth), rows[order])


def test_rows_can_be_appended_to_a_copy() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    copy = copied(spilled(rows[:4]))
    copy.append(rows[4:])
    assert np.array_equal(contents(copy, 2), rows)


def test_columns_are_read_by_several_threads() -> None:
    rows = np.random.default_rng(0).random((5_000, 16), np.float32)
    columns = spilled(*np.split(rows, 50))
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(columns.column, list(range(16)) * 10))
    assert all(np.array_equal(column, rows[:, i % 16]) for i, column in enumerate(read))


def test_folder_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(OutputError, match=r"^/nowhere: cannot be written or read \(.*\); free space, or set TMPDIR"):
        SpilledColumns(1)


def test_full_disk_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    full: Callable[[], object] = lambda: open("/dev/full", "w+b")  # noqa: E731, SIM115
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(OutputError, match=r"No space left on device\); free space"):
        spilled(np.zeros((10, 2), np.float32))
