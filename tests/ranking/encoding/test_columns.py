"""Canonical column types, ids and validation of numbers."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.encoding.columns import (
    add_reason,
    canonical_ids,
    cast_ids,
    coalesce,
    invalid_rows,
    parse_id,
    to_canonical,
    to_id_array,
)
from ranking.encoding.feature_table import fill_features
from ranking.errors import InvalidInputError
from ranking.schema import BagFeature, CategoricalFeature, NumericFeature, Schema

BRAND = CategoricalFeature(name="brand", column="made_by", owner="item", kind="categorical")
TAGS = BagFeature(name="tags", column="labels", owner="item", kind="bag")
PRICE = NumericFeature(name="price", column="cost", owner="item", kind="numeric")

# Categorical columns.


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64(), pa.float32()]
)
def test_to_canonical_casts_integers_of_any_type_to_int64(kind: pa.DataType) -> None:
    result = to_canonical(pa.array([3, None, 7], kind), BRAND)
    assert result.type == pa.int64()
    assert result.to_pylist() == [3, None, 7]


@pytest.mark.parametrize(("values", "ids"), [([3.0, None, -7.0], [3, None, -7]), ([True, None, False], [1, None, 0])])
def test_to_canonical_casts_integral_floats_and_booleans_to_int64(values: list[Any], ids: list[Any]) -> None:
    assert to_canonical(pa.array(values), BRAND).equals(pa.array(ids))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_to_canonical_casts_text_of_any_type_to_string(kind: pa.DataType) -> None:
    result = to_canonical(pa.array(["a", None, ""], kind), BRAND)
    assert result.type == pa.string()
    assert result.to_pylist() == ["a", None, ""]


@pytest.mark.parametrize(("values", "kind"), [(["a", None, "b", "a"], pa.string()), ([5, None, 2, 5], pa.int64())])
def test_to_canonical_decodes_dictionary_encoded_ids(values: list[Any], kind: pa.DataType) -> None:
    result = to_canonical(pa.array(values).dictionary_encode(), BRAND)
    assert result.type == kind
    assert result.to_pylist() == values


NOT_IDS = "'brand' is a categorical: its ids must be integers or strings"


@pytest.mark.parametrize(
    ("feature", "column", "reason"),
    [
        *((BRAND, pa.array([1.0, value]), NOT_IDS) for value in (1.5, float("nan"), float("inf"), 1e300)),
        (BRAND, pa.array([1], pa.timestamp("s")), "integers or strings"),
        (BRAND, pa.array([b"a"]), "integers or strings"),
        (BRAND, pa.array([[1]]), "integers or strings"),
        (BRAND, pa.array([{"a": 1}]), "integers or strings"),
        (BRAND, pa.array([Decimal("1.5")]), "integers or strings"),
        (BRAND, pa.array([2**63], pa.uint64()), "integers or strings"),
        (PRICE, pa.array(["1"]), "'price' is numeric: write numbers"),
        (PRICE, pa.array([[1.0]]), "'price' is numeric: write numbers"),
        (PRICE, pa.array([1], pa.timestamp("s")), "'price' is numeric: write numbers"),
        (TAGS, pa.array([1]), "'tags' is a bag: write lists of ids"),
        (TAGS, pa.array(["a"]), "'tags' is a bag: write lists of ids"),
        (TAGS, pa.array([[1.0], [2.5]]), "'tags' is a bag: its ids must be integers or strings"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else getattr(value, "kind", ""),
)
def test_to_canonical_invalid_column_is_rejected(feature: Any, column: pa.Array, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason) as caught:
        to_canonical(column, feature)
    assert caught.value.field == feature.column


# Numeric columns.


@pytest.mark.parametrize(
    "column",
    [
        pa.array([True, None, False]),
        pa.array([1, None, 0], pa.int8()),
        pa.array([1, None, 0], pa.uint64()),
        pa.array(np.array([1, 0, 0], np.float16), mask=np.array([False, True, False])),
        pa.array([1.0, None, 0.0], pa.float32()),
        pa.array([Decimal("1.00"), None, Decimal("0.00")], pa.decimal128(5, 2)),
        pa.array([1, None, 0]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_to_canonical_casts_numbers_of_any_type_to_float64(column: pa.Array) -> None:
    assert to_canonical(column, PRICE).equals(pa.array([1.0, None, 0.0], pa.float64()))


def test_to_canonical_keeps_the_fraction_of_a_decimal() -> None:
    assert to_canonical(pa.array([Decimal("12.25")]), PRICE).to_pylist() == [12.25]


def test_to_canonical_casts_integers_beyond_53_bits_to_float64() -> None:
    assert to_canonical(pa.array([2**60 + 1]), PRICE).to_pylist() == [float(2**60)]


# Lists of ids.


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int16()),
        pa.large_list(pa.int64()),
        pa.list_(pa.float64()),
        pa.list_(pa.dictionary(pa.int8(), pa.int64())),
    ],
    ids=str,
)
def test_to_canonical_casts_lists_of_any_type(kind: pa.DataType) -> None:
    values = [[1, 2], None, [], [3, None]]
    result = to_canonical(pa.array(values, kind), TAGS)
    assert result.type == pa.large_list(pa.int64())
    assert result.to_pylist() == values


def test_to_canonical_casts_fixed_size_lists() -> None:
    result = to_canonical(pa.array([["a", "b"], None, ["c", None]], pa.list_(pa.string(), 2)), TAGS)
    assert result.type == pa.large_list(pa.string())
    assert result.to_pylist() == [["a", "b"], None, ["c", None]]


def test_to_canonical_keeps_lists_without_ids() -> None:
    assert to_canonical(pa.array([[], None, [None]]), TAGS).to_pylist() == [[], None, [None]]


# Storage layouts.


@pytest.mark.parametrize("feature", [BRAND, TAGS, PRICE], ids=lambda feature: feature.kind)
def test_to_canonical_keeps_a_column_of_null_type(feature: Any) -> None:
    assert to_canonical(pa.nulls(3), feature).null_count == 3


COLUMNS = {
    "categorical": (BRAND, pa.array(["a", None, "b", "c", None, "d"])),
    "dictionary": (BRAND, pa.array(["a", None, "b", "c", None, "d"]).dictionary_encode()),
    "float ids": (BRAND, pa.array([1.0, None, 2.0, 3.0, None, 4.0])),
    "numeric": (PRICE, pa.array([1, None, 2, 3, None, 4])),
    "bag": (TAGS, pa.array([[1, 2], None, [], [3, None], [4], [5, 6]])),
    "fixed-size bag": (TAGS, pa.array([[1, 2], None, [3, 4], [5, None], None, [7, 8]], pa.list_(pa.int64(), 2))),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(("start", "length"), [(0, 3), (1, 4), (2, 0), (4, 2)])
def test_to_canonical_of_a_slice_returns_only_its_rows(name: str, start: int, length: int) -> None:
    feature, column = COLUMNS[name]
    result = to_canonical(column.slice(start, length), feature)
    result.validate(full=True)
    assert result.to_pylist() == column.to_pylist()[start : start + length]


@pytest.mark.parametrize("name", COLUMNS)
def test_to_canonical_combines_chunks(name: str) -> None:
    feature, column = COLUMNS[name]
    result = to_canonical(pa.chunked_array([column.slice(0, 2), column.slice(2, 0), column.slice(2)]), feature)
    assert isinstance(result, pa.Array)
    assert result.to_pylist() == column.to_pylist()


def test_to_canonical_ignores_invalid_values_outside_a_slice() -> None:
    assert to_canonical(pa.array([[1.5], [2.0]]).slice(1), TAGS).to_pylist() == [[2]]


@given(st.lists(st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=3), max_size=8), st.data())
def test_to_canonical_keeps_all_values_of_a_bag(values: list[list[int | None] | None], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(values)))
    column = pa.array(values, pa.list_(pa.int32())).slice(start)
    result = to_canonical(column, TAGS)
    assert result.to_pylist() == values[start:]
    assert to_canonical(result, TAGS).equals(result)


# Casts of ids.


def test_cast_ids_between_integers_and_text() -> None:
    assert cast_ids(pa.array([1, None]), pa.string(), "id").to_pylist() == ["1", None]
    assert cast_ids(pa.array(["12", None]), pa.int64(), "id").to_pylist() == [12, None]
    assert cast_ids(pa.array(["12"]).dictionary_encode(), pa.int64(), "id").to_pylist() == [12]


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float32(), pa.decimal128(20, 0)])
def test_cast_ids_of_any_number_type_are_integers(kind: pa.DataType) -> None:
    numbers = pa.array([7, None], pa.int64()).cast(kind)
    assert cast_ids(numbers, pa.string(), "id").to_pylist() == ["7", None]
    assert cast_ids(numbers, pa.int64(), "id").to_pylist() == [7, None]


@pytest.mark.parametrize(
    "text", ["x", "", "07", "-07", "+7", " 7", "7 ", "7.0", "1e3", "-0", "--7", "-", "٣", "1_0", str(2**63), "9" * 400]
)
def test_cast_ids_text_that_is_not_an_integer_is_rejected(text: str) -> None:
    with pytest.raises(InvalidInputError, match="ids must be integers of 64 bits in decimal notation") as caught:
        cast_ids(pa.array(["1", text, None]), pa.int64(), "item_id")
    assert caught.value.field == "item_id"
    assert caught.value.reason.endswith(f"; {text!r:.80} is not")
    assert parse_id(text) is None


@given(st.integers(-(2**63), 2**63 - 1))
def test_parse_id_reads_the_decimal_text_of_integers(value: int) -> None:
    assert parse_id(str(value)) == value
    assert cast_ids(pa.array([str(value)]), pa.int64(), "id").to_pylist() == [value]


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        (pa.array([1], pa.date32()), "holds date32.*, but ids are integers or text"),
        (pa.array([b"a"]), "holds binary, but ids are integers or text"),
        (pa.array([[1]]), "holds list"),
        (pa.array([1.0, 2.5]), "ids must be integers of 64 bits or text; 2.5 is not"),
        (pa.array([float("nan")]), "nan is not"),
        (pa.array([1, 2**63], pa.uint64()), f"{2**63} is not"),
    ],
)
def test_canonical_ids_that_are_not_ids_are_rejected(ids: pa.Array, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        canonical_ids(ids, "user_id")


@pytest.mark.parametrize(
    ("column", "fallback", "feature", "expected"),
    [
        (["a", None], [1, 2], BRAND, ["a", "2"]),
        ([1, None], ["a", "b"], BRAND, ["1", "b"]),
        ([1, None], [1, 2], BRAND, [1, 2]),
        ([["a"], None], [[1], [2]], TAGS, [["a"], ["2"]]),
        ([[1], None], [["a"], ["b"]], TAGS, [["1"], ["b"]]),
        ([[], None], [[1], [2]], TAGS, [[], [2]]),
    ],
)
def test_coalesce_of_integers_and_text_is_text(column: Any, fallback: Any, feature: Any, expected: list[Any]) -> None:
    values = (to_canonical(pa.array(part), feature) for part in (column, fallback))
    assert coalesce(*values, feature).to_pylist() == expected


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, None, -(2**63)], pa.array([1, None, -(2**63)])),
        (["a", None], pa.array(["a", None])),
        ([None, "a"], pa.array([None, "a"])),
        ([7, "a"], pa.array(["7", "a"])),
        (["a", 7], pa.array(["a", "7"])),
        ([1, 2**63], pa.array(["1", str(2**63)])),
        ([], pa.array([], pa.int64())),
        (np.array([3, 4], np.int32), pa.array([3, 4], pa.int32())),
        (pa.array(["a"]), pa.array(["a"])),
    ],
)
def test_to_id_array_is_int64_unless_an_id_is_text_or_too_large(ids: Any, expected: pa.Array) -> None:
    assert to_id_array(ids).equals(expected)


# Validation of numbers.


def violations(schema: Schema, **columns: list[float | None]) -> list[tuple[str, list[bool], str]]:
    """Return column, mask of invalid rows and reason of each violated rule."""
    rows = len(next(iter(columns.values())))
    table = fill_features(pa.table({"item_id": ["v"] * rows, **columns}), schema, {})
    return [
        (feature.column, invalid.to_pylist(), reason)
        for feature, invalid, reason in invalid_rows(table, schema)
        if any(invalid.to_pylist())
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_invalid_rows_reports_non_finite_numbers_but_not_nulls(schema: Schema, value: float) -> None:
    ((column, rows, reason),) = violations(schema, age=[1.0, value, None])
    assert (column, rows) == ("age", [False, True, False])
    assert reason == "is NaN or infinite: write null for unknown"


@pytest.mark.parametrize(
    ("value", "is_invalid"), [(-1.0, True), (-1.5, True), (-0.999, False), (0.0, False), (None, False)]
)
def test_invalid_rows_reports_log1p_of_minus_one_or_less(schema: Schema, value: float | None, is_invalid: bool) -> None:
    reason = "is −1 or less, but its transform is log1p"
    assert violations(schema, price=[value]) == ([("price", [True], reason)] if is_invalid else [])


def test_invalid_rows_accepts_numbers_below_minus_one_without_log1p(schema: Schema) -> None:
    assert violations(schema, age=[-5.0]) == []


def test_invalid_rows_ignores_columns_of_ids(schema: Schema) -> None:
    assert violations(schema, tab=[1, 2]) == []


def test_add_reason_keeps_the_first_reason() -> None:
    reasons = add_reason(pa.nulls(3, pa.string()), pa.array([True, False, None]), "first")
    reasons = add_reason(reasons, pa.array([True, True, False]), "second")
    assert reasons.to_pylist() == ["first", "second", None]
