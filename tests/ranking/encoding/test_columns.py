"""Feature columns as Arrow: one type a kind, look-up of what is left out, rules that numbers obey."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranking.encoding.columns import add_reason, cast_ids, invalid_rows, to_canonical, to_id_array
from ranking.encoding.feature_table import FeatureTable, fill_features
from ranking.errors import InvalidInputError
from ranking.schema import BagFeature, CategoricalFeature, NumericFeature, Owner, Schema

BRAND = CategoricalFeature(name="brand", column="made_by", owner="item", kind="categorical")
TAGS = BagFeature(name="tags", column="labels", owner="item", kind="bag")
PRICE = NumericFeature(name="price", column="cost", owner="item", kind="numeric")

# Categorical columns become int64 or string.


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64(), pa.float32()]
)
def test_whole_numbers_of_any_type_become_integer_ids(kind: pa.DataType) -> None:
    found = to_canonical(pa.array([3, None, 7], kind), BRAND)
    assert found.type == pa.int64()
    assert found.to_pylist() == [3, None, 7]


def test_whole_numbers_stored_as_floats_beside_nulls_become_integer_ids() -> None:
    assert to_canonical(pa.array([3.0, None, -7.0]), BRAND).equals(pa.array([3, None, -7]))


def test_booleans_become_the_ids_0_and_1() -> None:
    assert to_canonical(pa.array([True, None, False]), BRAND).equals(pa.array([1, None, 0]))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_text_of_any_type_becomes_string_ids(kind: pa.DataType) -> None:
    found = to_canonical(pa.array(["a", None, ""], kind), BRAND)
    assert found.type == pa.string()
    assert found.to_pylist() == ["a", None, ""]


@pytest.mark.parametrize(("values", "kind"), [(["a", None, "b", "a"], pa.string()), ([5, None, 2, 5], pa.int64())])
def test_dictionary_encoded_ids_are_decoded(values: list[Any], kind: pa.DataType) -> None:
    found = to_canonical(pa.array(values).dictionary_encode(), BRAND)
    assert found.type == kind
    assert found.to_pylist() == values


@pytest.mark.parametrize("value", [1.5, float("nan"), float("inf"), 1e300])
def test_a_float_that_is_no_whole_number_is_no_id(value: float) -> None:
    with pytest.raises(InvalidInputError, match="'brand' is a categorical: its ids must be integers or strings") as bad:
        to_canonical(pa.array([1.0, value]), BRAND)
    assert bad.value.field == "made_by"


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1], pa.timestamp("s")),
        pa.array([b"a"]),
        pa.array([[1]]),
        pa.array([{"a": 1}]),
        pa.array([Decimal("1.5")]),
        pa.array([2**63], pa.uint64()),
    ],
    ids=lambda column: str(column.type),
)
def test_what_is_no_id_names_the_column(column: pa.Array) -> None:
    with pytest.raises(InvalidInputError, match="integers or strings") as bad:
        to_canonical(column, BRAND)
    assert bad.value.field == "made_by"


# Numeric columns become float64.


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
def test_numbers_of_any_type_become_float64(column: pa.Array) -> None:
    assert to_canonical(column, PRICE).equals(pa.array([1.0, None, 0.0], pa.float64()))


def test_a_decimal_keeps_its_fraction() -> None:
    assert to_canonical(pa.array([Decimal("12.25")]), PRICE).to_pylist() == [12.25]


@pytest.mark.parametrize(
    "column",
    [pa.array(["1"]), pa.array([[1.0]]), pa.array([1], pa.timestamp("s"))],
    ids=lambda column: str(column.type),
)
def test_what_is_no_number_names_the_column(column: pa.Array) -> None:
    with pytest.raises(InvalidInputError, match="'price' is numeric: write numbers") as bad:
        to_canonical(column, PRICE)
    assert bad.value.field == "cost"


def test_an_integer_beyond_53_bits_is_a_number_too() -> None:
    assert to_canonical(pa.array([2**60 + 1]), PRICE).to_pylist() == [float(2**60)]


# Bags become large lists of int64 or string.


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
def test_lists_of_any_type_become_bags(kind: pa.DataType) -> None:
    values = [[1, 2], None, [], [3, None]]
    found = to_canonical(pa.array(values, kind), TAGS)
    assert found.type == pa.large_list(pa.int64())
    assert found.to_pylist() == values


def test_fixed_size_lists_become_bags() -> None:
    found = to_canonical(pa.array([["a", "b"], None, ["c", None]], pa.list_(pa.string(), 2)), TAGS)
    assert found.type == pa.large_list(pa.string())
    assert found.to_pylist() == [["a", "b"], None, ["c", None]]


def test_a_bag_of_nothing_but_nulls_has_no_ids() -> None:
    assert to_canonical(pa.array([[], None, [None]]), TAGS).to_pylist() == [[], None, [None]]


@pytest.mark.parametrize("column", [pa.array([1]), pa.array(["a"])], ids=lambda column: str(column.type))
def test_what_is_no_list_is_no_bag(column: pa.Array) -> None:
    with pytest.raises(InvalidInputError, match="'tags' is a bag: write lists of ids") as bad:
        to_canonical(column, TAGS)
    assert bad.value.field == "labels"


def test_a_fraction_in_a_bag_names_the_column() -> None:
    with pytest.raises(InvalidInputError, match="'tags' is a bag: its ids must be integers or strings") as bad:
        to_canonical(pa.array([[1.0], [2.5]]), TAGS)
    assert bad.value.field == "labels"


# How the column is stored does not matter.


@pytest.mark.parametrize("feature", [BRAND, TAGS, PRICE], ids=lambda feature: feature.kind)
def test_a_column_without_a_type_is_all_null(feature: Any) -> None:
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
def test_a_slice_is_read_as_the_rows_that_it_shows(name: str, start: int, length: int) -> None:
    feature, column = COLUMNS[name]
    found = to_canonical(column.slice(start, length), feature)
    found.validate(full=True)
    assert found.to_pylist() == column.to_pylist()[start : start + length]


@pytest.mark.parametrize("name", COLUMNS)
def test_chunks_are_joined(name: str) -> None:
    feature, column = COLUMNS[name]
    found = to_canonical(pa.chunked_array([column.slice(0, 2), column.slice(2, 0), column.slice(2)]), feature)
    assert isinstance(found, pa.Array)
    assert found.to_pylist() == column.to_pylist()


def test_what_a_slice_does_not_show_cannot_be_wrong() -> None:
    assert to_canonical(pa.array([[1.5], [2.0]]).slice(1), TAGS).to_pylist() == [[2]]


@given(st.lists(st.none() | st.lists(st.none() | st.integers(-5, 5), max_size=3), max_size=8), st.data())
@settings(max_examples=50, deadline=None)
def test_bringing_a_bag_to_its_type_changes_no_value(
    values: list[list[int | None] | None], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(values)))
    column = pa.array(values, pa.list_(pa.int32())).slice(start)
    found = to_canonical(column, TAGS)
    assert found.to_pylist() == values[start:]
    assert to_canonical(found, TAGS).equals(found)


# Ids of one kind are read as the other where that is possible.


def test_ids_are_cast_to_what_the_ranker_knows() -> None:
    assert cast_ids(pa.array([1, None]), pa.string(), "id").to_pylist() == ["1", None]
    assert cast_ids(pa.array(["12", None]), pa.int64(), "id").to_pylist() == [12, None]
    assert cast_ids(pa.array(["12"]).dictionary_encode(), pa.int64(), "id").to_pylist() == [12]


def test_text_that_is_no_integer_is_an_error_where_integers_are_known() -> None:
    with pytest.raises(InvalidInputError, match="ids must be integers") as bad:
        cast_ids(pa.array(["1", "x"]), pa.int64(), "item_id")
    assert bad.value.field == "item_id"


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
def test_ids_are_integers_unless_one_is_text_or_too_large(ids: Any, expected: pa.Array) -> None:
    assert to_id_array(ids).equals(expected)


# Feature tables.


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (pa.array([3, 4], pa.uint8()), pa.array([3, 4])),
        (pa.array([3.0, 4.0]), pa.array([3, 4])),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "b"])),
        (pa.array(["a", "b"], pa.large_string()), pa.array(["a", "b"])),
    ],
)
def test_ids_of_a_feature_table_are_integers_of_64_bits_or_strings(ids: pa.Array, expected: pa.Array) -> None:
    table = FeatureTable(pa.table({"id": ids}), "id")
    assert table.ids.equals(expected)
    assert table.key_type == expected.type


def test_an_id_of_a_feature_table_beyond_64_bits_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match=f"ids must be integers of 64 bits .* {2**63} is none"):
        FeatureTable(pa.table({"id": pa.array([1, 2**63], pa.uint64())}), "id")


def test_a_feature_table_without_its_id_column_says_what_it_found() -> None:
    with pytest.raises(InvalidInputError, match=r"'item_id': the id column is missing.*price, brand"):
        FeatureTable(pa.table({"price": [1.0], "brand": ["a"]}), "item_id")


def test_a_null_id_is_an_error_that_names_its_row() -> None:
    with pytest.raises(InvalidInputError, match="'item_id', row 2: an id is null"):
        FeatureTable(pa.table({"item_id": ["a", "b", None]}), "item_id")


@pytest.mark.parametrize(("ids", "shown"), [(["a", "b", "a"], "'a'"), ([7, 8, 7], "7")])
def test_a_repeated_id_is_an_error_that_names_it(ids: list[Any], shown: str) -> None:
    with pytest.raises(InvalidInputError, match=f"id {shown} stands twice"):
        FeatureTable(pa.table({"item_id": ids}), "item_id")


def test_a_feature_table_gives_one_row_an_id_and_null_for_an_unknown_one() -> None:
    table = FeatureTable(pa.table({"id": ["a", "b"], "price": [1.0, 2.0], "tags": [["x"], None]}), "id")
    assert len(table) == 2
    found = table.columns(pa.array(["b", "a", "?", None, "b"]), ["price", "tags", "colour"])
    assert {name: column.to_pylist() for name, column in found.items()} == {
        "price": [2.0, 1.0, None, None, 2.0],
        "tags": [None, ["x"], None, None, None],
    }


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        (pa.array([1, 2], pa.int8()), pa.array([2, 1])),
        (pa.array([1, 2]), pa.array(["2", "1"])),
        (pa.array(["1", "2"]), pa.array([2, 1])),
        (pa.array(["1", "2"], pa.large_string()), pa.array(["2", "1"], pa.string_view())),
        (pa.array(["1", "2"]).dictionary_encode(), pa.array(["2", "1"]).dictionary_encode()),
        (pa.array([1, 2]), pa.array([2.0, 1.0])),
        (pa.array([1.0, 2.0]), pa.array([2, 1])),
    ],
    ids=lambda column: str(column.type),
)
def test_ids_are_found_whatever_their_type(known: pa.Array, asked: pa.Array, schema: Schema) -> None:
    tables: dict[Owner, FeatureTable] = {
        "item": FeatureTable(pa.table({"item_id": known, "price": [1.0, 2.0]}), "item_id")
    }
    assert fill_features(pa.table({"item_id": asked}), schema, tables)["price"].to_pylist() == [2.0, 1.0]


# Completion.


@pytest.fixture
def tables() -> dict[Owner, FeatureTable]:
    items = {"item_id": ["v1", "v2", "v3"], "price": [1.0, 2.0, None], "tags": [["a"], ["b", "c"], None]}
    return {
        "user": FeatureTable(pa.table({"user_id": [1, 2], "age": [30, 40]}), "user_id"),
        "item": FeatureTable(pa.table(items), "item_id"),
    }


def test_what_the_table_leaves_out_is_looked_up_by_id(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    found = fill_features(pa.table({"user_id": [2, 1], "item_id": ["v2", "v1"]}), schema, tables)
    assert found["age"].to_pylist() == [40.0, 30.0]
    assert found["price"].to_pylist() == [2.0, 1.0]
    assert found["tags"].to_pylist() == [["b", "c"], ["a"]]


def test_a_null_number_is_looked_up_and_a_given_one_wins(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    rows = pa.table({"item_id": ["v1", "v2", "v3"], "price": [None, 9.0, None]})
    assert fill_features(rows, schema, tables)["price"].to_pylist() == [1.0, 9.0, None]


def test_a_null_bag_is_looked_up_and_a_given_one_wins(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    rows = pa.table({"item_id": ["v1", "v2", "v3", "v2"], "tags": [None, ["z"], None, []]})
    assert fill_features(rows, schema, tables)["tags"].to_pylist() == [["a"], ["z"], None, []]


@pytest.mark.parametrize("given", [[None, []], [[None], None]], ids=["empty", "null"])
def test_bags_that_hold_no_id_at_all_are_completed(
    schema: Schema, tables: dict[Owner, FeatureTable], given: list[Any]
) -> None:
    rows = pa.table({"item_id": ["v1", "v1"], "tags": given})
    assert fill_features(rows, schema, tables)["tags"].to_pylist() == [["a"] if bag is None else bag for bag in given]


def test_a_bag_of_another_kind_of_id_than_the_looked_up_one_names_the_column(
    schema: Schema, tables: dict[Owner, FeatureTable]
) -> None:
    with pytest.raises(InvalidInputError) as bad:
        fill_features(pa.table({"item_id": ["v1", "v2"], "tags": [[1], None]}), schema, tables)
    assert bad.value.field == "tags"


def test_a_column_of_nulls_is_looked_up(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    rows = pa.table({"item_id": ["v1", "v2"], "price": pa.nulls(2), "tags": pa.nulls(2)})
    found = fill_features(rows, schema, tables)
    assert found["price"].to_pylist() == [1.0, 2.0]
    assert found["tags"].to_pylist() == [["a"], ["b", "c"]]


def test_a_known_column_of_nulls_leaves_given_values_alone(schema: Schema) -> None:
    known = pa.table({"item_id": ["v1", "v2"], "price": pa.nulls(2), "tags": pa.nulls(2)})
    rows = pa.table({"item_id": ["v1", "v2"], "price": [3.0, None], "tags": [["z"], None]})
    found = fill_features(rows, schema, {"item": FeatureTable(known, "item_id")})
    assert found["price"].to_pylist() == [3.0, None]
    assert found["tags"].to_pylist() == [["z"], None]


def test_an_unknown_id_leaves_its_features_null(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    found = fill_features(pa.table({"user_id": [99], "item_id": ["v99"]}), schema, tables)
    assert [found[column].null_count for column in ("age", "price", "tags")] == [1, 1, 1]
    assert found["item_id"].to_pylist() == ["v99"]


def test_without_an_id_column_everything_is_null(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    found = fill_features(pa.table({"tab": [1, 2]}), schema, tables)
    assert [found[feature.column].null_count for feature in schema.features] == [2, 2, 2, 2, 2, 0]


def test_an_id_that_cannot_be_cast_names_the_id_column(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    with pytest.raises(InvalidInputError, match="ids must be integers") as bad:
        fill_features(pa.table({"user_id": ["anna"], "item_id": ["v1"]}), schema, tables)
    assert bad.value.field == "user_id"


def test_columns_that_are_no_features_are_untouched(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    rows = pa.table(
        {
            "seconds": pa.array([1, 2], pa.int8()),
            "item_id": ["v1", "v2"],
            "note": pa.array(["x", "y"]).dictionary_encode(),
            "price": [None, 5.0],
        }
    )
    found = fill_features(rows, schema, tables)
    assert found.column_names[:4] == rows.column_names
    for column in ("seconds", "note"):
        assert found.schema.field(column) == rows.schema.field(column)
        assert found[column].equals(rows[column])


def test_columns_of_a_feature_table_that_are_no_features_are_not_added(schema: Schema) -> None:
    known = FeatureTable(pa.table({"item_id": ["v1"], "title": ["A"], "price": [1.0]}), "item_id")
    assert "title" not in fill_features(pa.table({"item_id": ["v1"]}), schema, {"item": known}).column_names


def test_no_rows_give_no_rows_with_every_feature(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    found = fill_features(pa.table({"item_id": pa.array([], pa.string())}), schema, tables)
    assert found.num_rows == 0
    assert {feature.column for feature in schema.features} <= set(found.column_names)


def test_completing_twice_changes_nothing(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    rows = pa.table({"user_id": [1, 7], "item_id": ["v3", "v2"], "tags": [["z"], None], "tab": [True, None]})
    once = fill_features(rows, schema, tables)
    assert fill_features(once, schema, tables).equals(once)


def test_the_order_in_which_a_columns_features_are_declared_does_not_matter() -> None:
    number = {"name": "hour_number", "column": "hour", "kind": "numeric", "owner": "context"}
    ids = {"name": "hour_id", "column": "hour", "kind": "categorical", "owner": "context"}
    found = [
        fill_features(
            pa.table({"hour": [1, 23]}),
            Schema.model_validate({"name": "s", "features": features, "tasks": [{"name": "t", "kind": "binary"}]}),
            {},
        )
        for features in ([ids, number], [number, ids])
    ]
    assert found[0].schema == found[1].schema


# Rules that numbers obey.


def broken(schema: Schema, **columns: list[float | None]) -> list[tuple[str, list[bool], str]]:
    rows = len(next(iter(columns.values())))
    table = fill_features(pa.table({"item_id": ["v"] * rows, **columns}), schema, {})
    found = invalid_rows(table, schema)
    return [(feature.column, rows.to_pylist(), how) for feature, rows, how in found if any(rows.to_pylist())]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_bad_and_null_is_not(schema: Schema, value: float) -> None:
    ((column, rows, how),) = broken(schema, age=[1.0, value, None])
    assert (column, rows) == ("age", [False, True, False])
    assert "NaN or infinite" in how
    assert "null" in how, "it says how to write an unknown number"


@pytest.mark.parametrize(("value", "bad"), [(-1.0, True), (-1.5, True), (-0.999, False), (0.0, False), (None, False)])
def test_log1p_takes_numbers_above_minus_one(schema: Schema, value: float | None, bad: bool) -> None:
    found = broken(schema, price=[value])
    assert bool(found) is bad
    for column, rows, how in found:
        assert (column, rows) == ("price", [True])
        assert "log1p" in how


def test_a_number_without_log1p_may_be_below_minus_one(schema: Schema) -> None:
    assert broken(schema, age=[-5.0]) == []


def test_an_unknown_column_breaks_no_rule(schema: Schema) -> None:
    assert broken(schema, tab=[1, 2]) == []


def test_mark_keeps_the_first_reason() -> None:
    reasons = add_reason(pa.nulls(3, pa.string()), pa.array([True, False, None]), "first")
    reasons = add_reason(reasons, pa.array([True, True, False]), "second")
    assert reasons.to_pylist() == ["first", "second", None]
