"""Rows of embedding tables for numbers in buckets and for crossed ids; vocabularies are in test_encoding.py."""

from __future__ import annotations

import bisect

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from ranking.encoding.vocabulary import (
    MISSING,
    OOV,
    Bucketizer,
    HashBuckets,
    IdArray,
    Vocabulary,
    hash_column,
    hash_values,
)


def crossed(space: HashBuckets, *columns: pa.Array) -> IdArray:
    return space.cross_rows([hash_column(column) for column in columns])


IDS = st.lists(st.none() | st.integers(-3, 3), min_size=1, max_size=20)


def test_a_bucket_starts_with_its_boundary() -> None:
    found = Bucketizer(np.array([0.0, 10.0])).rows(pa.array([-5.0, 0.0, 9.9, 10.0, 1e300, None]), "age")
    assert found.tolist() == [1, 2, 2, 3, 3, MISSING]


@given(
    st.lists(st.floats(-10, 10), max_size=6, unique=True).map(sorted),
    st.lists(st.none() | st.floats(-12, 12), max_size=20),
)
@settings(deadline=None)
def test_a_number_lies_in_the_bucket_of_the_largest_boundary_not_above_it(
    boundaries: list[float], values: list[float | None]
) -> None:
    space = Bucketizer(np.array(boundaries, np.float64))
    found = space.rows(pa.array(values, pa.float64()), "age").tolist()
    assert found == [MISSING if v is None else 1 + bisect.bisect_right(boundaries, v) for v in values]
    assert all(row < space.size for row in found)


def test_buckets_of_a_column_without_numbers_are_missing() -> None:
    assert Bucketizer(np.array([1.0])).rows(pa.nulls(2), "age").tolist() == [MISSING, MISSING]


INTEGERS = st.integers(-(2**63), 2**63 - 1)
NEAR = st.integers(-50, 50)


@given(
    st.lists(NEAR, unique=True) | st.lists(INTEGERS, unique=True) | st.lists(NEAR | INTEGERS, unique=True),
    st.lists(st.none() | NEAR | INTEGERS),
    st.integers(-(2**63), 2**63 - 101),
)
@settings(deadline=None)
def test_integers_have_the_rows_of_a_dictionary_wherever_they_lie(
    known: list[int], asked: list[int | None], start: int
) -> None:
    if start % 2:  # all of them far from 0
        known, asked = (
            [start + i for i in range(len(known))],
            [start + i for i in range(-1, 3) if start + i >= -(2**63)],
        )
    space = Vocabulary(pa.array(known, pa.int64()))
    expected = [MISSING if i is None else known.index(i) + 2 if i in known else OOV for i in asked + known]
    assert space.rows_from_values(asked + known, "id").tolist() == expected
    assert space.rows(pa.array(asked + known, pa.int64()), "id").tolist() == expected
    assert space.rows_from_values(np.array(known, np.int64), "id").tolist() == expected[len(asked) :]


def test_text_is_looked_up_as_integers_and_integers_as_text() -> None:
    numbers, words = Vocabulary(pa.array([7, 8])), Vocabulary(pa.array(["7", "8"]))
    assert numbers.rows_from_values(["8", None, "9"], "id").tolist() == [3, MISSING, OOV]
    assert words.rows_from_values([None, 8, 9], "id").tolist() == [MISSING, 3, OOV]
    assert words.rows_from_values(np.array([8, 9]), "id").tolist() == [3, OOV]
    assert words.rows_from_values([None], "id").tolist() == [MISSING]
    assert words.rows_from_values([], "id").tolist() == []


@given(IDS, st.data())
@settings(deadline=None)
def test_a_cross_depends_on_its_rows_values_alone(first: list[int | None], data: st.DataObject) -> None:
    second = data.draw(st.lists(st.none() | st.sampled_from("ab"), min_size=len(first), max_size=len(first)))
    space = HashBuckets(50)
    found = crossed(space, pa.array(first, pa.int64()), pa.array(second, pa.string()))
    for row, pair in enumerate(zip(first, second, strict=True)):
        alone = crossed(space, pa.array([pair[0]], pa.int64()), pa.array([pair[1]], pa.string()))
        assert found[row] == alone[0]
        assert (found[row] == MISSING) == (None in pair)
        assert found[row] < space.size


def test_a_cross_tells_pairs_apart_and_knows_first_from_second() -> None:
    pairs = [(a, b) for a in range(30) for b in range(30)]
    first, second = (pa.array(column) for column in zip(*pairs, strict=True))
    space = HashBuckets(10**9)
    assert len(set(crossed(space, first, second).tolist())) == len(pairs)
    assert (crossed(space, first, second) != crossed(space, second, first)).mean() > 0.9


def test_a_cross_fills_its_buckets_evenly() -> None:
    pairs = [(a, b) for a in range(100) for b in range(100)]
    rows = crossed(HashBuckets(10), *(pa.array(column) for column in zip(*pairs, strict=True)))
    counts = np.bincount(rows, minlength=11)
    assert counts[MISSING] == 0
    assert counts[1:].min() > 850
    assert counts[1:].max() < 1150


@given(st.lists(INTEGERS))
def test_arrays_hash_as_their_values(values: list[int]) -> None:
    array, space = np.array(values, np.int64), HashBuckets(1000)
    assert hash_values(array).tolist() == hash_values(values).tolist()
    assert space.rows_from_values(array, "id").tolist() == space.rows_from_values(values, "id").tolist()


def test_integers_and_their_text_cross_alike() -> None:
    space = HashBuckets(1000)
    numbers, text = pa.array([1, 2]), pa.array(["1", "2"])
    assert crossed(space, numbers, text).tolist() == crossed(space, text, numbers).tolist()
