"""Arrow columns → arrays: which row of a table an id gets, and what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranking.encoding.batch import EncodedBatch, RaggedIds
from ranking.encoding.encoder import Encoder, Scale, encode_labels
from ranking.encoding.feature_table import fill_features
from ranking.encoding.vocabulary import MISSING, OOV, HashBuckets, Vocabulary, hash_column, stable_hash
from ranking.errors import InvalidInputError
from ranking.schema import Owner, Schema, Task
from tests.support.encoded_batches import assert_equal_batches

SCHEMA = Schema.model_validate(
    {
        "name": "small",
        "features": [
            {"name": "brand", "kind": "categorical", "owner": "item"},
            {"name": "shop", "kind": "categorical", "owner": "item", "hash_buckets": 3},
            {"name": "tags", "kind": "bag", "owner": "item"},
            {"name": "words", "kind": "bag", "owner": "item", "hash_buckets": 5, "pooling": "sum"},
            {"name": "age", "kind": "numeric", "owner": "user"},
            {"name": "price", "kind": "numeric", "owner": "item", "transform": "log1p"},
        ],
        "tasks": [{"name": "click", "kind": "binary"}],
    }
)

ENCODER = Encoder(
    SCHEMA,
    {
        "brand": Vocabulary(pa.array([30, 10, 20])),
        "shop": HashBuckets(3),
        "tags": Vocabulary(pa.array(["red", "blue"])),
        "words": HashBuckets(5),
    },
    {
        "age": Scale(shift=40.0, scale=10.0, fill=0.0, has_missing_indicator=True),
        "price": Scale(shift=1.0, scale=2.0, fill=0.0, has_missing_indicator=False),
    },
)


def encode(**columns: Any) -> EncodedBatch:
    return ENCODER.encode(fill_features(pa.table(columns), SCHEMA, {}))


def lists(bag: RaggedIds) -> list[list[int]]:
    *parts, rest = np.split(bag.values, np.cumsum(bag.lengths))
    assert not len(rest)
    return [part.tolist() for part in parts]


# Ids.


def test_row_0_is_missing_and_row_1_unseen_and_known_ids_follow_in_order() -> None:
    assert (MISSING, OOV) == (0, 1)
    assert encode(brand=[30, 10, 20, None, 99]).ids[:, 0].tolist() == [2, 3, 4, 0, 1]


def test_a_vocabulary_has_a_row_for_each_id_and_two_more() -> None:
    assert Vocabulary(pa.array(["a", "b"])).size == 4
    assert Vocabulary(pa.array([], pa.string())).size == 2


def test_an_empty_vocabulary_has_seen_nothing() -> None:
    assert Vocabulary(pa.array([], pa.string())).rows(pa.array(["a", None]), "brand").tolist() == [OOV, MISSING]


def test_integers_written_as_text_are_known_and_other_text_is_an_error_that_names_the_column() -> None:
    assert encode(brand=["30", "99"]).ids[:, 0].tolist() == [2, 1]
    with pytest.raises(InvalidInputError, match="ids must be integers") as bad:
        encode(brand=["30", "acme"])
    assert bad.value.field == "brand"


def test_text_in_a_bag_trained_on_integers_is_an_error_that_names_the_column() -> None:
    encoder = Encoder(SCHEMA, {**ENCODER.id_mappings, "tags": Vocabulary(pa.array([1, 2]))}, ENCODER.scales)
    with pytest.raises(InvalidInputError, match="ids must be integers") as bad:
        encoder.encode(fill_features(pa.table({"tags": [["red"]]}), SCHEMA, {}))
    assert bad.value.field == "tags"


def test_integers_are_looked_up_as_text_where_the_vocabulary_is_text() -> None:
    assert Vocabulary(pa.array(["7", "8"])).rows(pa.array([8, 9]), "brand").tolist() == [3, 1]


# Hashed ids. These numbers are part of every published bundle: they may never change.


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", 8238016292129134938),
        ("a", 2340832890917691671),
        ("v1", 1028232052576552429),
        ("čaj", 5877600412746348440),
        (42, 3159871589620855869),
        (-7, 3625665032080988044),
    ],
)
def test_a_hash_is_the_same_in_every_version(value: object, expected: int) -> None:
    assert stable_hash(value) == expected


def test_bucket_rows_are_the_same_in_every_version() -> None:
    rows = HashBuckets(7).rows(pa.array(["", "a", "v1", "42", "-7", "čaj", "1", None]), "shop")
    assert rows.tolist() == [1, 5, 5, 5, 2, 1, 2, MISSING]


@given(st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=50, deadline=None)
def test_an_integer_and_its_text_share_a_bucket(value: int) -> None:
    buckets = HashBuckets(1000)
    assert buckets.rows(pa.array([value]), "shop") == buckets.rows(pa.array([str(value)]), "shop")


@given(st.text(), st.integers(1, 50))
@settings(max_examples=50, deadline=None)
def test_a_bucket_is_a_row_after_missing(value: str, count: int) -> None:
    buckets = HashBuckets(count)
    assert 1 <= buckets.rows(pa.array([value]), "shop")[0] < buckets.size == count + 1
    assert 0 <= stable_hash(value) < 2**63


def test_hash_column_hashes_each_value_and_null_is_0() -> None:
    found = hash_column(pa.array(["a", None, "v1", "a"]))
    assert found.tolist() == [stable_hash("a"), 0, stable_hash("v1"), stable_hash("a")]
    assert hash_column(pa.nulls(2)).tolist() == [0, 0]


# Numbers.


def test_a_number_is_shifted_and_scaled() -> None:
    assert encode(age=[40.0, 50.0, 25.0]).dense[:, 0].tolist() == [0.0, 1.0, -1.5]


def test_log1p_comes_before_shift_and_scale() -> None:
    found = encode(price=[np.expm1(1.0), np.expm1(5.0)]).dense[:, 1]
    assert found.tolist() == pytest.approx([0.0, 2.0])


def test_a_null_number_takes_its_fill_and_is_flagged_where_training_had_nulls() -> None:
    dense = encode(age=[None, 60.0], price=[None, 0.0]).dense
    assert dense[:, 0].tolist() == [0.0, 2.0]
    assert dense[:, 1].tolist() == [0.0, -0.5]
    assert dense[:, 2].tolist() == [1.0, 0.0], "the flag of age; price has none"
    assert dense.shape[1] == ENCODER.dense_size == 3


def test_dense_is_float32_and_never_nan() -> None:
    dense = encode(age=[None, 1.0], price=pa.nulls(2)).dense
    assert dense.dtype == np.float32
    assert not np.isnan(dense).any()


def test_missing_says_which_features_were_null_in_order_of_declaration() -> None:
    found = encode(brand=[1, None], tags=[None, []], age=[2.0, None]).missing
    assert found.tolist() == [[False, True, True, True, False, True], [True, True, False, True, True, True]]


# Bags.


def test_a_null_bag_is_one_missing_id_an_empty_one_is_empty_and_nulls_within_are_left_out() -> None:
    tags = [None, [], ["red", None, "blue"], [None], ["green", "red", "red"]]
    assert lists(encode(tags=tags).bags[0]) == [[MISSING], [], [2, 3], [], [OOV, 2, 2]]


def test_a_hashed_bag_keeps_the_order_of_its_ids() -> None:
    words = [["a", "b"], None, ["b"]]
    a, b = (1 + stable_hash(word) % 5 for word in ("a", "b"))
    assert lists(encode(words=words).bags[1]) == [[a, b], [MISSING], [b]]


def test_all_bags_may_be_empty() -> None:
    assert lists(encode(tags=[[], []]).bags[0]) == [[], []]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([["blue", "red"], None], pa.list_(pa.string(), 2)),
        pa.ListArray.from_arrays([0, 2, 4], ["blue", "red", "red", "red"], mask=pa.array([False, True])),
        pa.array([["?"], ["blue", "red"], None, ["?"]]).slice(1, 2),
    ],
    ids=["fixed-size list", "values under a null", "slice"],
)
def test_a_bag_is_read_alike_however_it_is_stored(column: pa.Array) -> None:
    assert lists(encode(tags=column).bags[0]) == [[3, 2], [MISSING]]


# Shapes.


def test_no_rows_give_arrays_of_no_rows() -> None:
    found = encode(brand=pa.array([], pa.int64()), tags=pa.array([], pa.list_(pa.string())))
    assert len(found) == 0
    assert found.ids.shape == (0, 2)
    assert found.dense.shape == (0, 3)
    assert found.missing.shape == (0, 6)
    assert [len(bag.lengths) for bag in found.bags] == [0, 0]


def test_every_column_may_be_unknown() -> None:
    found = ENCODER.encode(fill_features(pa.table({"other": [1, 2]}), SCHEMA, {}))
    assert found.ids.tolist() == [[MISSING, MISSING]] * 2
    assert [lists(bag) for bag in found.bags] == [[[MISSING]] * 2] * 2
    assert found.dense.tolist() == [[0.0, 0.0, 1.0]] * 2
    assert found.missing.all()


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "brand": st.none() | st.sampled_from([10, 20, 30, 99]),
            "shop": st.none() | st.sampled_from(["a", "b", "c"]),
            "tags": st.none() | st.lists(st.none() | st.sampled_from(["red", "blue", "green"]), max_size=3),
            "words": st.none() | st.lists(st.none() | st.text(max_size=2), max_size=3),
            "age": st.none() | st.floats(-1e6, 1e6),
            "price": st.none() | st.floats(-0.9, 1e6),
        }
    ),
    min_size=1,
    max_size=8,
)
TYPES = pa.schema(
    [
        ("brand", pa.int64()),
        ("shop", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("words", pa.list_(pa.string())),
        ("age", pa.float64()),
        ("price", pa.float64()),
    ]
)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return fill_features(pa.Table.from_pylist(rows, TYPES), SCHEMA, {})


@given(ROWS)
@settings(max_examples=60, deadline=None)
def test_a_row_alone_is_encoded_as_it_is_inside_a_table(rows: list[dict[str, Any]]) -> None:
    whole, inside = table(rows), ENCODER.encode(table(rows))
    for row in range(len(rows)):
        alone = ENCODER.encode(table(rows[row : row + 1]))
        assert_equal_batches(alone, inside.take(np.array([row])))
        assert_equal_batches(ENCODER.encode(whole.slice(row, 1)), alone)


@given(ROWS, st.data())
@settings(max_examples=60, deadline=None)
def test_rows_picked_from_a_table_are_encoded_as_they_are_inside_it(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    wanted = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    inside = ENCODER.encode(table(rows)).take(np.array(wanted, np.int64))
    assert_equal_batches(ENCODER.encode(table([rows[row] for row in wanted])), inside)


# On disk.


def test_what_was_written_reads_back_and_encodes_the_same(
    hand_encoder: Encoder,
    hand_schema: Schema,
    hand_tables: dict[Owner, Any],
    draw_rows: Callable[[int, int], pa.Table],
    tmp_path: Path,
) -> None:
    hand_encoder.write(tmp_path / "encoder")
    again = Encoder.read(tmp_path / "encoder", hand_schema)
    rows = fill_features(draw_rows(50, 1), hand_schema, hand_tables)
    assert_equal_batches(again.encode(rows), hand_encoder.encode(rows))
    assert again.scales == hand_encoder.scales
    assert {name: space.size for name, space in again.id_mappings.items()} == {
        name: space.size for name, space in hand_encoder.id_mappings.items()
    }


def test_only_vocabularies_and_scales_are_written(tmp_path: Path) -> None:
    ENCODER.write(tmp_path)
    files = sorted(file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file())
    assert files == ["scales.parquet", "vocabularies/brand.parquet", "vocabularies/tags.parquet"]


def test_an_encoder_without_numbers_or_without_ids_reads_back(tmp_path: Path) -> None:
    click = [{"name": "click", "kind": "binary"}]
    number = {"name": "age", "kind": "numeric", "owner": "user"}
    ids = {"name": "brand", "kind": "categorical", "owner": "item"}
    for feature, spaces, scales in (
        (number, {}, {"age": Scale(1.0, 2.0, 0.0, has_missing_indicator=False)}),
        (ids, {"brand": Vocabulary(pa.array([5]))}, {}),
    ):
        schema = Schema.model_validate({"name": "s", "features": [feature], "tasks": click})
        folder = tmp_path / str(feature["name"])
        Encoder(schema, spaces, scales).write(folder)
        found = Encoder.read(folder, schema).encode(pa.table({feature["name"]: [5]}))
        assert (found.ids.tolist(), found.dense.tolist()) == (([[]], [[2.0]]) if scales else ([[2]], [[]]))


# Labels.


def test_labels_are_transformed_as_their_task_says_and_null_is_nan() -> None:
    tasks = [
        Task(name="click", kind="binary", label="is_click"),
        Task(name="watch", kind="regression", transform="log1p"),
        Task(name="rating", kind="regression"),
    ]
    rows = pa.table({"rating": [3, None, -1], "is_click": [True, False, None], "watch": [0.0, np.expm1(2.0), None]})
    found = encode_labels(rows, tasks)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[1.0, 0.0, 3.0], [0.0, 2.0, np.nan], [np.nan, np.nan, -1.0]], rtol=1e-6)
