from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.data.dedup import DuplicateFilter, hash_rows

COLUMNS = {
    "number": (pa.int64(), st.sampled_from([None, 0, 1, -1, 2])),
    "wide": (pa.uint64(), st.sampled_from([None, 0, 1, 2**64 - 1])),
    "real": (pa.float64(), st.sampled_from([None, 0.0, 1.0, 0.5, float("inf")])),
    "text": (pa.string(), st.sampled_from([None, "", "0", "None", "é"])),
    "flag": (pa.bool_(), st.sampled_from([None, False, True])),
    "list": (pa.list_(pa.string()), st.sampled_from([None, [], [None], ["a"], ["a", "b"], ["b", "a"]])),
    "time": (pa.timestamp("us"), st.sampled_from([None, datetime(2026, 1, 1), datetime(1970, 1, 1)])),
}
ROWS = st.lists(st.tuples(*(values for _, values in COLUMNS.values())), max_size=30)


def table(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [[] for _ in COLUMNS]
    return pa.table(
        {name: pa.array(list(c), kind) for (name, (kind, _)), c in zip(COLUMNS.items(), columns, strict=True)}
    )


def expected_first_seen(rows: list[tuple[Any, ...]]) -> list[bool]:
    """Reference implementation that compares each row with all rows before it."""
    return [row not in rows[:i] for i, row in enumerate(rows)]


@given(ROWS)
def test_first_seen_marks_only_the_first_of_equal_rows(rows: list[tuple[Any, ...]]) -> None:
    assert DuplicateFilter().first_seen(table(rows)).tolist() == expected_first_seen(rows)


@settings(max_examples=60)
@given(ROWS, st.integers(0, 30))
def test_first_seen_remembers_rows_of_earlier_tables(rows: list[tuple[Any, ...]], cut: int) -> None:
    seen = DuplicateFilter()
    first, second = (seen.first_seen(table(part)).tolist() for part in (rows[:cut], rows[cut:]))
    assert first + second == expected_first_seen(rows)


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), min_size=2, max_size=2, unique=True))
def test_hash_rows_of_different_integers_differ(values: list[int | None]) -> None:
    first, second = hash_rows(pa.table({"n": pa.array(values, pa.int64())}))
    assert first != second


@pytest.mark.parametrize("values", [(0, -(2**63)), (1, 1 - 2**63), (2**62, -(2**62))])
def test_hash_rows_of_integers_with_different_high_bits_differ(values: tuple[int, int]) -> None:
    first, second = hash_rows(pa.table({"n": pa.array(values, pa.int64())}))
    assert first != second


@given(st.lists(st.floats(allow_nan=False).filter(bool), min_size=2, max_size=2, unique=True))
def test_hash_rows_of_different_floats_differ(values: list[float]) -> None:
    first, second = hash_rows(pa.table({"x": values}))
    assert first != second


def test_first_seen_treats_nan_as_equal_to_nan() -> None:
    nan = float("nan")
    assert DuplicateFilter().first_seen(pa.table({"x": [nan, nan, 0.0]})).tolist() == [True, False, True]


def test_rows_with_swapped_values_are_not_duplicates() -> None:
    words = pa.table({"a": ["x", "y", "", "xy"], "b": ["y", "x", "xy", ""]})
    numbers = pa.table({"a": [1, 2, 0, 3], "b": [2, 1, 3, 0]})
    assert DuplicateFilter().first_seen(words).all()
    assert DuplicateFilter().first_seen(numbers).all()


def test_hash_rows_ignores_chunking_and_dictionary_encoding() -> None:
    plain = pa.table({"a": ["x", "y", "x"], "n": [1, 2, 1]})
    chunked = pa.concat_tables([plain.slice(0, 1), plain.slice(1)])
    encoded = plain.set_column(0, "a", plain["a"].dictionary_encode())
    assert hash_rows(plain).tolist() == hash_rows(chunked).tolist() == hash_rows(encoded).tolist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.5, 2.5], pa.float16()),
        pa.array(["1.5", "2.5"]).cast(pa.decimal128(5, 1)),
        pa.array([b"a", b"b"]),
        pa.array([{"a": 1}, {"a": 2}]),
        pa.array([[("k", 1)], [("k", 2)]], pa.map_(pa.string(), pa.int64())),
        pa.array([1, 2], pa.time32("s")),
        pa.array([1, 2], pa.duration("ms")),
        pa.array([1, 2], pa.date32()),
        pa.array([1, 2]).cast(pa.timestamp("ns", "Europe/Berlin")),
    ],
    ids=lambda column: str(column.type).split("<")[0],
)
def test_first_seen_supports_every_parquet_type(column: pa.Array) -> None:
    twice = pa.table({"c": pa.concat_arrays([column, column])})
    assert DuplicateFilter().first_seen(twice).tolist() == [True, True, False, False]


def test_rows_of_nulls_are_duplicates() -> None:
    assert DuplicateFilter().first_seen(pa.table({"c": pa.nulls(3)})).tolist() == [True, False, False]


def test_first_seen_of_empty_table_is_empty() -> None:
    assert DuplicateFilter().first_seen(table([])).tolist() == []


def test_first_seen_remembers_rows_over_many_tables() -> None:
    random, seen, known = np.random.default_rng(0), DuplicateFilter(), set()
    for size in random.integers(0, 300, 100):
        values = random.integers(10_000, size=size).tolist()
        expected = []
        for value in values:
            expected.append(value not in known)
            known.add(value)
        assert seen.first_seen(pa.table({"n": pa.array(values, pa.int64())})).tolist() == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array(["ab", "c"]), pa.array(["a", "bc"])),
        (pa.array(["a\0"]), pa.array(["a"])),
        (pa.array(["ab"]), pa.array(["ba"])),
        (pa.array([["ab"]]), pa.array([["a", "b"]])),
        (pa.array([[[1], [2]]]), pa.array([[[1, 2]]])),
        (pa.array([{"a": 1}]), pa.array([{"a": 2}])),
        (pa.array([0.0]), pa.array([-0.0])),
        (pa.array([Decimal("1.0")]), pa.array([Decimal("1.1")])),
    ],
    ids=str,
)
def test_hash_rows_of_different_values_differ(one: pa.Array, other: pa.Array) -> None:
    assert hash_rows(pa.table({"x": one})).tolist() != hash_rows(pa.table({"x": other})).tolist()


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["x", "é", None, "", "y"]),
        pa.array([["a"], None, ["b", "c"], [], [None]]),
        pa.array([1, None, 3, 4, 5]),
    ],
)
def test_hash_rows_of_slice_equals_slice_of_hashes(values: pa.Array) -> None:
    whole = hash_rows(pa.table({"x": values})).tolist()
    assert hash_rows(pa.table({"x": values.slice(1, 3)})).tolist() == whole[1:4]
