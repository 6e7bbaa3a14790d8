"""Encoding of tables: embedding rows, lists, numbers, missing flags and labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.encoding.batch import EncodedBatch, RaggedIds
from ranking.encoding.encoder import Encoder, Scale, encode_labels
from ranking.encoding.feature_table import fill_features
from ranking.encoding.id_rows import MISSING, OOV
from ranking.encoding.vocabulary import HashBuckets, Vocabulary, stable_hash
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


def test_encode_gives_row_0_to_missing_row_1_to_oov_and_then_known_ids() -> None:
    assert (MISSING, OOV) == (0, 1)
    assert encode(brand=[30, 10, 20, None, 99]).ids[:, 0].tolist() == [2, 3, 4, 0, 1]


def test_encode_casts_text_integers_and_rejects_other_text() -> None:
    assert encode(brand=["30", "99"]).ids[:, 0].tolist() == [2, 1]
    with pytest.raises(InvalidInputError, match="ids must be integers") as caught:
        encode(brand=["30", "acme"])
    assert caught.value.field == "brand"


def test_encode_text_in_a_bag_of_integers_is_rejected() -> None:
    encoder = Encoder(SCHEMA, {**ENCODER.id_mappings, "tags": Vocabulary(pa.array([1, 2]))}, ENCODER.scales)
    with pytest.raises(InvalidInputError, match="ids must be integers") as caught:
        encoder.encode(fill_features(pa.table({"tags": [["red"]]}), SCHEMA, {}))
    assert caught.value.field == "tags"


# Numbers.


def test_encode_shifts_and_scales_numbers() -> None:
    assert encode(age=[40.0, 50.0, 25.0]).dense[:, 0].tolist() == [0.0, 1.0, -1.5]


def test_encode_applies_log1p_before_the_scale() -> None:
    result = encode(price=[np.expm1(1.0), np.expm1(5.0)]).dense[:, 1]
    assert result.tolist() == pytest.approx([0.0, 2.0])


def test_encode_fills_null_numbers_and_sets_missing_indicators() -> None:
    dense = encode(age=[None, 60.0], price=[None, 0.0]).dense
    assert dense[:, 0].tolist() == [0.0, 2.0]
    assert dense[:, 1].tolist() == [0.0, -0.5]
    assert dense[:, 2].tolist() == [1.0, 0.0], "the missing indicator of age; price has none"
    assert dense.shape[1] == ENCODER.dense_size == 3


def test_encode_dense_is_float32_without_nan() -> None:
    dense = encode(age=[None, 1.0], price=pa.nulls(2)).dense
    assert dense.dtype == np.float32
    assert not np.isnan(dense).any()


def test_encode_missing_flags_are_in_order_of_declaration() -> None:
    result = encode(brand=[1, None], tags=[None, []], age=[2.0, None]).missing
    assert result.tolist() == [[False, True, True, True, False, True], [True, True, False, True, True, True]]


# Bags.


def test_encode_bag_null_is_one_missing_id_and_inner_nulls_are_dropped() -> None:
    tags = [None, [], ["red", None, "blue"], [None], ["green", "red", "red"]]
    assert lists(encode(tags=tags).bags[0]) == [[MISSING], [], [2, 3], [], [OOV, 2, 2]]


def test_encode_bag_with_hashed_ids_keeps_their_order() -> None:
    words = [["a", "b"], None, ["b"]]
    a, b = (1 + stable_hash(word) % 5 for word in ("a", "b"))
    assert lists(encode(words=words).bags[1]) == [[a, b], [MISSING], [b]]


def test_encode_bag_of_empty_lists() -> None:
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
def test_encode_bag_does_not_depend_on_the_storage_layout(column: pa.Array) -> None:
    assert lists(encode(tags=column).bags[0]) == [[3, 2], [MISSING]]


# Shapes.


def test_encode_no_rows_gives_empty_arrays() -> None:
    result = encode(brand=pa.array([], pa.int64()), tags=pa.array([], pa.list_(pa.string())))
    assert len(result) == 0
    assert result.ids.shape == (0, 2)
    assert result.dense.shape == (0, 3)
    assert result.missing.shape == (0, 6)
    assert [len(bag.lengths) for bag in result.bags] == [0, 0]


def test_encode_table_without_features_is_all_missing() -> None:
    result = ENCODER.encode(fill_features(pa.table({"other": [1, 2]}), SCHEMA, {}))
    assert result.ids.tolist() == [[MISSING, MISSING]] * 2
    assert [lists(bag) for bag in result.bags] == [[[MISSING]] * 2] * 2
    assert result.dense.tolist() == [[0.0, 0.0, 1.0]] * 2
    assert result.missing.all()


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
def test_encode_of_one_row_equals_its_row_in_the_table(rows: list[dict[str, Any]]) -> None:
    whole, expected = table(rows), ENCODER.encode(table(rows))
    for row in range(len(rows)):
        alone = ENCODER.encode(table(rows[row : row + 1]))
        assert_equal_batches(alone, expected.take(np.array([row])))
        assert_equal_batches(ENCODER.encode(whole.slice(row, 1)), alone)


@given(ROWS, st.data())
def test_encode_of_selected_rows_equals_their_rows_in_the_table(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    selected = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    expected = ENCODER.encode(table(rows)).take(np.array(selected, np.int64))
    assert_equal_batches(ENCODER.encode(table([rows[row] for row in selected])), expected)


# Files.


def test_written_encoder_reads_back_and_encodes_the_same(
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
    assert {name: mapping.size for name, mapping in again.id_mappings.items()} == {
        name: mapping.size for name, mapping in hand_encoder.id_mappings.items()
    }


def test_scales_of_an_earlier_version_have_no_bins(hand_encoder: Encoder, hand_schema: Schema, tmp_path: Path) -> None:
    hand_encoder.write(tmp_path)
    file = tmp_path / "scales.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["edges"]), file)
    again = Encoder.read(tmp_path, hand_schema)
    assert len(hand_encoder.bins) > 0
    assert len(again.bins) == 0
    assert {number.bins for number in again.schema.numerics} == {0}


def test_write_creates_files_for_vocabularies_and_scales_only(tmp_path: Path) -> None:
    ENCODER.write(tmp_path)
    files = sorted(file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file())
    assert files == ["scales.parquet", "vocabularies/brand.parquet", "vocabularies/tags.parquet"]


def test_encoder_without_numbers_or_without_ids_reads_back(tmp_path: Path) -> None:
    click = [{"name": "click", "kind": "binary"}]
    number = {"name": "age", "kind": "numeric", "owner": "user"}
    ids = {"name": "brand", "kind": "categorical", "owner": "item"}
    for feature, id_mappings, scales in (
        (number, {}, {"age": Scale(1.0, 2.0, 0.0, has_missing_indicator=False)}),
        (ids, {"brand": Vocabulary(pa.array([5]))}, {}),
    ):
        schema = Schema.model_validate({"name": "s", "features": [feature], "tasks": click})
        folder = tmp_path / str(feature["name"])
        Encoder(schema, id_mappings, scales).write(folder)
        result = Encoder.read(folder, schema).encode(pa.table({feature["name"]: [5]}))
        assert (result.ids.tolist(), result.dense.tolist()) == (([[]], [[2.0]]) if scales else ([[2]], [[]]))


# Labels.


def test_encode_labels_applies_transforms_and_null_is_nan() -> None:
    tasks = [
        Task(name="click", kind="binary", label="is_click"),
        Task(name="watch", kind="regression", transform="log1p"),
        Task(name="rating", kind="regression"),
    ]
    rows = pa.table({"rating": [3, None, -1], "is_click": [True, False, None], "watch": [0.0, np.expm1(2.0), None]})
    result = encode_labels(rows, tasks)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, [[1.0, 0.0, 3.0], [0.0, 2.0, np.nan], [np.nan, np.nan, -1.0]], rtol=1e-6)
