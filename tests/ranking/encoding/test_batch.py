"""Selection and concatenation of encoded rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.encoding.batch import EncodedBatch, Int64, RaggedIds, ragged_arange
from tests.support.encoded_batches import assert_equal_batches


class Row(NamedTuple):
    """Row with two single features, two lists of ids, two numbers and three missing flags."""

    ids: tuple[int, int]
    bags: tuple[list[int], list[int]]
    dense: tuple[float, float]
    missing: tuple[bool, bool, bool]


IDS, LISTS = st.integers(0, 2**40), st.lists(st.integers(0, 99), max_size=3)
NUMBERS, FLAGS = st.floats(-(2.0**50), 2.0**50, width=32), st.booleans()
ROW = st.builds(
    Row, st.tuples(IDS, IDS), st.tuples(LISTS, LISTS), st.tuples(NUMBERS, NUMBERS), st.tuples(FLAGS, FLAGS, FLAGS)
)
ROWS = st.lists(ROW, min_size=1, max_size=8)


def bag(*lists: list[int]) -> RaggedIds:
    return RaggedIds(
        np.array([i for ids in lists for i in ids], np.int64), np.array([len(ids) for ids in lists], np.int64)
    )


def inputs(rows: list[Row]) -> EncodedBatch:
    return EncodedBatch(
        np.array([row.ids for row in rows], np.int64).reshape(-1, 2),
        tuple(bag(*(row.bags[i] for row in rows)) for i in range(2)),
        np.array([row.dense for row in rows], np.float32).reshape(-1, 2),
        np.array([row.missing for row in rows], np.bool_).reshape(-1, 3),
    )


def positions(rows: list[int]) -> Int64:
    return np.array(rows, np.int64)


@given(ROWS, st.data())
def test_take_returns_the_selected_rows_in_order(rows: list[Row], data: st.DataObject) -> None:
    selected = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    assert_equal_batches(inputs(rows).take(positions(selected)), inputs([rows[row] for row in selected]))


@given(st.lists(ROWS | st.just([]), min_size=1, max_size=4))
def test_concat_appends_parts_in_order(parts: list[list[Row]]) -> None:
    assert_equal_batches(
        EncodedBatch.concat([inputs(part) for part in parts]), inputs([row for part in parts for row in part])
    )


@given(ROWS, st.data())
def test_take_returns_a_copy(rows: list[Row], data: st.DataObject) -> None:
    whole = inputs(rows)
    taken = whole.take(positions(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))))
    for array in (taken.ids, taken.dense, taken.missing, *(part for b in taken.bags for part in (b.values, b.lengths))):
        array[...] = 1
    assert_equal_batches(whole, inputs(rows))


def test_batch_without_features_has_a_length() -> None:
    whole = EncodedBatch(np.empty((3, 0), np.int64), (), np.empty((3, 0), np.float32), np.ones((3, 1), np.bool_))
    assert len(whole) == 3
    assert len(whole.take(positions([2, 0]))) == 2
    assert len(EncodedBatch.concat([whole, whole])) == 6


@pytest.mark.parametrize("row", [4, -5])
def test_take_out_of_range_raises_index_error(row: int) -> None:
    rows = [Row((i, i), ([i], []), (0.0, 0.0), (False, False, False)) for i in range(4)]
    with pytest.raises(IndexError):
        inputs(rows).take(positions([0, row]))


def test_ragged_ids_take_returns_whole_lists_including_empty_ones() -> None:
    result = bag([5, 6], [], [7]).take(positions([2, 0, 1, 2]))
    assert (result.values.tolist(), result.lengths.tolist()) == ([7, 5, 6, 7], [1, 2, 0, 1])


def test_ragged_ids_take_of_empty_lists_has_no_values() -> None:
    result = bag([], []).take(positions([1, 0, 1]))
    assert (result.values.tolist(), result.lengths.tolist()) == ([], [0, 0, 0])


def test_ragged_ids_concat_keeps_list_boundaries() -> None:
    result = RaggedIds.concat([bag([5], []), bag(), bag([6, 7])])
    assert (result.values.tolist(), result.lengths.tolist()) == ([5, 6, 7], [1, 0, 2])


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 5)), max_size=8))
def test_ragged_arange_concatenates_the_ranges(ranges: list[tuple[int, int]]) -> None:
    result = ragged_arange(positions([start for start, _ in ranges]), positions([length for _, length in ranges]))
    assert result.dtype == np.int64
    assert result.tolist() == [start + i for start, length in ranges for i in range(length)]
