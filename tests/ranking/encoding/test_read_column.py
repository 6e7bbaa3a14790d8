"""Defaults of nulls and maximum lengths of sequences, in ``read_column`` and in the encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.encoding.columns import invalid_rows, read_column, to_canonical
from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.feature_table import fill_features
from ranking.errors import InvalidInputError
from ranking.schema import BagFeature, BucketsFeature, CategoricalFeature, NumericFeature, Schema, SequenceFeature
from tests.support.encoded_batches import assert_equal_batches

TAB = CategoricalFeature(name="tab", owner="context", kind="categorical", default="home")
PRICE = NumericFeature(name="price", owner="item", kind="numeric", default=2.5)
BAND = BucketsFeature(name="band", owner="item", kind="buckets", boundaries=(1.0,), default=2.0)
TAGS = BagFeature(name="tags", owner="item", kind="bag", default=("new", "red"))
RECENT = SequenceFeature(name="recent", owner="user", kind="sequence", max_length=2)

LISTS = st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=6), max_size=10)


def read(feature: Any, values: Any) -> list[Any]:
    column = values if isinstance(values, pa.Array) else pa.array(values)
    result: list[Any] = read_column(to_canonical(column, feature), feature).to_pylist()
    return result


@pytest.mark.parametrize(
    ("feature", "values", "expected"),
    [
        (TAB, ["a", None], ["a", "home"]),
        (TAB, pa.nulls(2), ["home", "home"]),
        (TAB.model_copy(update={"default": True}), [5, None], [5, 1]),
        (TAB.model_copy(update={"default": 7}), ["a", None], ["a", "7"]),
        (TAB.model_copy(update={"default": "7"}), [5, None], ["5", "7"]),
        (PRICE, [1, None], [1.0, 2.5]),
        (PRICE, pa.nulls(1), [2.5]),
        (BAND, [0.5, None], [0.5, 2.0]),
        (TAGS, [["a"], [], None], [["a"], [], ["new", "red"]]),
        (TAGS, pa.nulls(1), [["new", "red"]]),
        (TAGS.model_copy(update={"default": ()}), [["a"], None], [["a"], []]),
        (RECENT.model_copy(update={"default": (7, 8, 9)}), [[1], None], [[1], [8, 9]]),
    ],
)
def test_read_column_replaces_null_by_the_default(feature: Any, values: Any, expected: list[Any]) -> None:
    assert read(feature, values) == expected


def test_read_column_without_default_keeps_null() -> None:
    assert read(TAB.model_copy(update={"default": None}), ["a", None]) == ["a", None]


@pytest.mark.parametrize(
    ("feature", "values", "expected"), [(TAB, [1, None], ["1", "home"]), (TAGS, [[1], None], [["1"], ["new", "red"]])]
)
def test_read_column_text_default_makes_integers_text(feature: Any, values: list[Any], expected: list[Any]) -> None:
    """Requests may send integers to a ranker whose training log held text."""
    assert read(feature, values) == expected


@given(LISTS, st.integers(1, 4), st.data())
def test_read_column_keeps_the_newest_ids_of_a_sequence(lists: list[Any], count: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(lists)))
    column = pa.array(lists, pa.list_(pa.int64())).slice(start)
    feature = RECENT.model_copy(update={"max_length": count})
    assert read(feature, column) == [None if ids is None else ids[-count:] for ids in lists[start:]]


@pytest.mark.parametrize(
    ("feature", "kind"), [(RECENT, "a sequence: write lists of ids"), (BAND, "cut into buckets: write numbers")]
)
def test_to_canonical_wrong_type_names_column_and_feature(feature: Any, kind: str) -> None:
    with pytest.raises(InvalidInputError, match=f"holds string, but '{feature.name}' is {kind}"):
        to_canonical(pa.array(["x"]), feature)


FEATURES = [
    {"name": "item_id", "kind": "categorical", "owner": "item"},
    {"name": "tab", "kind": "categorical", "owner": "context", "default": "home"},
    {"name": "recent", "kind": "sequence", "owner": "user", "table": "item_id", "max_length": 2},
    {"name": "band", "column": "age", "kind": "buckets", "owner": "user", "boundaries": [18, 40], "default": 30},
    {"name": "age", "kind": "numeric", "owner": "user", "transform": "none"},
    {"name": "item_tab", "kind": "cross", "of": ["item_id", "tab"], "hash_buckets": 1000},
]
SCHEMA = Schema.model_validate({"name": "s", "features": FEATURES, "tasks": [{"name": "click", "kind": "binary"}]})
TYPES = pa.schema(
    [("item_id", pa.int64()), ("tab", pa.string()), ("recent", pa.list_(pa.int64())), ("age", pa.float64())]
)
ROWS = fill_features(
    pa.table(
        {
            "item_id": [1, 2, 1, None],
            "tab": ["home", None, "search", None],
            "recent": [[1, 2, 3], [9], None, []],
            "age": [17.0, None, 40.0, 20.0],
        }
    ),
    SCHEMA,
    {},
)


@pytest.fixture
def encoder() -> Encoder:
    fitter = EncoderFitter(SCHEMA)
    fitter.add(ROWS)
    return fitter.encoder()


def missing_names(flags: Any) -> list[str]:
    """Return the names of the features whose missing flag is set."""
    return [feature.name for feature, is_missing in zip(SCHEMA.inputs, flags, strict=True) if is_missing]


def test_encoder_treats_a_default_like_an_explicit_value(encoder: Encoder) -> None:
    explicit = ROWS.set_column(ROWS.column_names.index("tab"), "tab", pa.array(["home", "home", "search", "home"]))
    assert encoder.id_mappings["tab"].ids().to_pylist() == ["home", "search"]  # type: ignore[union-attr]
    result, expected = encoder.encode(ROWS), encoder.encode(explicit)
    np.testing.assert_array_equal(result.ids, expected.ids)
    np.testing.assert_array_equal(result.dense, expected.dense)


def test_encode_value_filled_by_a_default_is_still_missing(encoder: Encoder) -> None:
    names = [feature.name for feature in SCHEMA.inputs]
    assert [
        [n for n, is_missing in zip(names, row, strict=True) if is_missing] for row in encoder.encode(ROWS).missing
    ] == [[], ["tab", "band", "age"], ["recent"], ["item_id", "tab"]]


def test_encode_missing_flags_name_cross_parts_but_not_crosses(encoder: Encoder) -> None:
    unknown = fill_features(pa.table({"item_id": pa.array([None, None], pa.int64())}), SCHEMA, {})
    result = encoder.encode(unknown)
    assert (result.ids[:, [f.name for f in SCHEMA.categoricals].index("item_tab")] == 0).all()
    assert missing_names(result.missing[0])[:2] == ["item_id", "tab"]
    assert result.missing.shape == (2, len(SCHEMA.inputs)), "item_tab is not an input"


def test_encode_cross_with_a_missing_part_is_missing(encoder: Encoder) -> None:
    crossed = encoder.encode(ROWS).ids[:, [f.name for f in SCHEMA.categoricals].index("item_tab")].tolist()
    assert [row > 0 for row in crossed] == [True, True, True, False]
    assert len(set(crossed)) == 4


def test_encode_features_sharing_a_column_use_their_own_default(encoder: Encoder) -> None:
    result = encoder.encode(ROWS)
    assert result.ids[:, [f.name for f in SCHEMA.categoricals].index("band")].tolist() == [1, 2, 3, 2]
    assert result.dense[[0, 2, 3], 0].tolist() == [17.0, 40.0, 20.0]


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "item_id": st.none() | st.integers(0, 9),
                "tab": st.none() | st.sampled_from(["home", "search", "new"]),
                "recent": st.none() | st.lists(st.none() | st.integers(0, 9), max_size=4),
                "age": st.none() | st.floats(0, 99),
            }
        ),
        min_size=1,
        max_size=8,
    )
)
def test_encode_of_one_row_equals_its_row_in_the_table(rows: list[dict[str, Any]]) -> None:
    fitter = EncoderFitter(SCHEMA)
    fitter.add(ROWS)
    encoder = fitter.encoder()
    whole = fill_features(pa.Table.from_pylist(rows, TYPES), SCHEMA, {})
    expected = encoder.encode(whole)
    for row in range(len(rows)):
        assert_equal_batches(encoder.encode(whole.slice(row, 1)), expected.take(np.array([row])))


def test_sequence_shares_rows_with_items_and_counts_only_pooled_ids(encoder: Encoder) -> None:
    assert encoder.id_mappings["item_id"].ids().to_pylist() == [1, 2, 3, 9]  # type: ignore[union-attr]
    (recent,) = encoder.encode(ROWS).bags
    assert recent.lengths.tolist() == [2, 1, 1, 0]
    assert recent.values.tolist() == [3, 4, 5, 0]


def test_invalid_rows_reports_non_finite_numbers_of_buckets() -> None:
    rows = fill_features(pa.table({"age": [float("nan"), 1.0, float("inf")]}), SCHEMA, {})
    invalid = {f.name: mask.to_pylist() for f, mask, _ in invalid_rows(rows, SCHEMA)}
    assert invalid["band"] == [True, False, True]
