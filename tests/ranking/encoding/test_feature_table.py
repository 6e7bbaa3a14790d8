"""Feature tables and the completion of rows from them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ranking.encoding.feature_table import FeatureTable, fill_features
from ranking.errors import InvalidInputError
from ranking.schema import Owner, Schema


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (pa.array([3, 4], pa.uint8()), pa.array([3, 4])),
        (pa.array([3.0, 4.0]), pa.array([3, 4])),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["a", "b"])),
        (pa.array(["a", "b"], pa.large_string()), pa.array(["a", "b"])),
    ],
)
def test_feature_table_ids_are_int64_or_string(ids: pa.Array, expected: pa.Array) -> None:
    table = FeatureTable(pa.table({"id": ids}), "id")
    assert table.ids.equals(expected)
    assert table.key_type == expected.type


def test_feature_table_id_beyond_64_bits_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match=f"ids must be integers of 64 bits .* {2**63} is not"):
        FeatureTable(pa.table({"id": pa.array([1, 2**63], pa.uint64())}), "id")


def test_feature_table_without_id_column_lists_its_columns() -> None:
    with pytest.raises(InvalidInputError, match=r"'item_id': the id column is missing.*price, brand"):
        FeatureTable(pa.table({"price": [1.0], "brand": ["a"]}), "item_id")


def test_feature_table_null_id_is_rejected_with_its_row() -> None:
    with pytest.raises(InvalidInputError, match="'item_id', row 2: an id is null"):
        FeatureTable(pa.table({"item_id": ["a", "b", None]}), "item_id")


@pytest.mark.parametrize(("ids", "shown"), [(["a", "b", "a"], "'a'"), ([7, 8, 7], "7")])
def test_feature_table_duplicate_id_is_rejected(ids: list[Any], shown: str) -> None:
    with pytest.raises(InvalidInputError, match=f"id {shown} occurs twice"):
        FeatureTable(pa.table({"item_id": ids}), "item_id")


def test_feature_table_contains_ids_in_both_types() -> None:
    table = FeatureTable(pa.table({"id": ["a", "7"]}), "id")
    assert table.contains(pa.array(["7", None, "b", "7"])).tolist() == [True, False, False, True]
    assert table.contains(pa.array([7, 8])).tolist() == [True, False]
    assert table.contains(pa.array([], pa.string())).tolist() == []


def test_feature_table_columns_returns_one_row_per_id_and_null_for_unknown_ids() -> None:
    table = FeatureTable(pa.table({"id": ["a", "b"], "price": [1.0, 2.0], "tags": [["x"], None]}), "id")
    assert len(table) == 2
    result = table.columns(pa.array(["b", "a", "?", None, "b"]), ["price", "tags", "color"])
    assert {name: column.to_pylist() for name, column in result.items()} == {
        "price": [2.0, 1.0, None, None, 2.0],
        "tags": [None, ["x"], None, None, None],
    }


@pytest.mark.parametrize(
    ("table_ids", "ids"),
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
def test_fill_features_finds_ids_of_any_type(table_ids: pa.Array, ids: pa.Array, schema: Schema) -> None:
    tables: dict[Owner, FeatureTable] = {
        "item": FeatureTable(pa.table({"item_id": table_ids, "price": [1.0, 2.0]}), "item_id")
    }
    assert fill_features(pa.table({"item_id": ids}), schema, tables)["price"].to_pylist() == [2.0, 1.0]


# Completion of rows.


@pytest.fixture
def tables() -> dict[Owner, FeatureTable]:
    items = {"item_id": ["v1", "v2", "v3"], "price": [1.0, 2.0, None], "tags": [["a"], ["b", "c"], None]}
    return {
        "user": FeatureTable(pa.table({"user_id": [1, 2], "age": [30, 40]}), "user_id"),
        "item": FeatureTable(pa.table(items), "item_id"),
    }


def test_fill_features_adds_missing_columns_by_id(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    result = fill_features(pa.table({"user_id": [2, 1], "item_id": ["v2", "v1"]}), schema, tables)
    assert result["age"].to_pylist() == [40.0, 30.0]
    assert result["price"].to_pylist() == [2.0, 1.0]
    assert result["tags"].to_pylist() == [["b", "c"], ["a"]]


def test_fill_features_fills_null_numbers_and_keeps_others(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    rows = pa.table({"item_id": ["v1", "v2", "v3"], "price": [None, 9.0, None]})
    assert fill_features(rows, schema, tables)["price"].to_pylist() == [1.0, 9.0, None]


def test_fill_features_fills_null_bags_and_keeps_others(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    rows = pa.table({"item_id": ["v1", "v2", "v3", "v2"], "tags": [None, ["z"], None, []]})
    assert fill_features(rows, schema, tables)["tags"].to_pylist() == [["a"], ["z"], None, []]


@pytest.mark.parametrize("tags", [[None, []], [[None], None]], ids=["empty", "null"])
def test_fill_features_fills_null_bags_of_a_column_without_ids(
    schema: Schema, tables: dict[Owner, FeatureTable], tags: list[Any]
) -> None:
    rows = pa.table({"item_id": ["v1", "v1"], "tags": tags})
    assert fill_features(rows, schema, tables)["tags"].to_pylist() == [["a"] if bag is None else bag for bag in tags]


def test_fill_features_bag_with_ids_of_another_type_becomes_text(
    schema: Schema, tables: dict[Owner, FeatureTable]
) -> None:
    result = fill_features(pa.table({"item_id": ["v1", "v2"], "tags": [[1], None]}), schema, tables)
    assert result["tags"].to_pylist() == [["1"], ["b", "c"]]


def test_fill_features_fills_a_column_of_null_type(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    rows = pa.table({"item_id": ["v1", "v2"], "price": pa.nulls(2), "tags": pa.nulls(2)})
    result = fill_features(rows, schema, tables)
    assert result["price"].to_pylist() == [1.0, 2.0]
    assert result["tags"].to_pylist() == [["a"], ["b", "c"]]


def test_fill_features_with_null_column_in_the_table_keeps_values(schema: Schema) -> None:
    known = pa.table({"item_id": ["v1", "v2"], "price": pa.nulls(2), "tags": pa.nulls(2)})
    rows = pa.table({"item_id": ["v1", "v2"], "price": [3.0, None], "tags": [["z"], None]})
    result = fill_features(rows, schema, {"item": FeatureTable(known, "item_id")})
    assert result["price"].to_pylist() == [3.0, None]
    assert result["tags"].to_pylist() == [["z"], None]


def test_fill_features_of_an_unknown_id_are_null(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    result = fill_features(pa.table({"user_id": [99], "item_id": ["v99"]}), schema, tables)
    assert [result[column].null_count for column in ("age", "price", "tags")] == [1, 1, 1]
    assert result["item_id"].to_pylist() == ["v99"]


def test_fill_features_without_id_column_are_null(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    result = fill_features(pa.table({"tab": [1, 2]}), schema, tables)
    assert [result[feature.column].null_count for feature in schema.features] == [2, 2, 2, 2, 2, 0]


def test_fill_features_id_that_cannot_be_cast_is_rejected(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    with pytest.raises(InvalidInputError, match="ids must be integers") as caught:
        fill_features(pa.table({"user_id": ["anna"], "item_id": ["v1"]}), schema, tables)
    assert caught.value.field == "user_id"


def test_fill_features_keeps_columns_that_are_not_features(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    rows = pa.table(
        {
            "seconds": pa.array([1, 2], pa.int8()),
            "item_id": ["v1", "v2"],
            "note": pa.array(["x", "y"]).dictionary_encode(),
            "price": [None, 5.0],
        }
    )
    result = fill_features(rows, schema, tables)
    assert result.column_names[:4] == rows.column_names
    for column in ("seconds", "note"):
        assert result.schema.field(column) == rows.schema.field(column)
        assert result[column].equals(rows[column])


def test_fill_features_ignores_table_columns_that_are_not_features(schema: Schema) -> None:
    known = FeatureTable(pa.table({"item_id": ["v1"], "title": ["A"], "price": [1.0]}), "item_id")
    assert "title" not in fill_features(pa.table({"item_id": ["v1"]}), schema, {"item": known}).column_names


def test_fill_features_of_no_rows_has_every_feature(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    result = fill_features(pa.table({"item_id": pa.array([], pa.string())}), schema, tables)
    assert result.num_rows == 0
    assert {feature.column for feature in schema.features} <= set(result.column_names)


def test_fill_features_is_idempotent(schema: Schema, tables: dict[Owner, FeatureTable]) -> None:
    rows = pa.table({"user_id": [1, 7], "item_id": ["v3", "v2"], "tags": [["z"], None], "tab": [True, None]})
    once = fill_features(rows, schema, tables)
    assert fill_features(once, schema, tables).equals(once)


def test_fill_features_does_not_depend_on_the_order_of_features_sharing_a_column() -> None:
    number = {"name": "hour_number", "column": "hour", "kind": "numeric", "owner": "context"}
    ids = {"name": "hour_id", "column": "hour", "kind": "categorical", "owner": "context"}
    completed = [
        fill_features(
            pa.table({"hour": [1, 23]}),
            Schema.model_validate({"name": "s", "features": features, "tasks": [{"name": "t", "kind": "binary"}]}),
            {},
        )
        for features in ([ids, number], [number, ids])
    ]
    assert completed[0].schema == completed[1].schema
