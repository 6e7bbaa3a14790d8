"""What a feature reads in its column: defaults for nulls, the newest ids of a sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
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
    found: list[Any] = read_column(to_canonical(column, feature), feature).to_pylist()
    return found


@pytest.mark.parametrize(
    ("feature", "values", "expected"),
    [
        (TAB, ["a", None], ["a", "home"]),
        (TAB, pa.nulls(2), ["home", "home"]),
        (TAB.model_copy(update={"default": True}), [5, None], [5, 1]),
        (TAB.model_copy(update={"default": 7}), ["a", None], ["a", "7"]),
        (TAB.model_copy(update={"default": "7"}), [5, None], [5, 7]),
        (PRICE, [1, None], [1.0, 2.5]),
        (PRICE, pa.nulls(1), [2.5]),
        (BAND, [0.5, None], [0.5, 2.0]),
        (TAGS, [["a"], [], None], [["a"], [], ["new", "red"]]),
        (TAGS, pa.nulls(1), [["new", "red"]]),
        (TAGS.model_copy(update={"default": ()}), [["a"], None], [["a"], []]),
        (RECENT.model_copy(update={"default": (7, 8, 9)}), [[1], None], [[1], [8, 9]]),
    ],
)
def test_a_null_stands_for_the_default(feature: Any, values: Any, expected: list[Any]) -> None:
    assert read(feature, values) == expected


def test_without_a_default_a_null_stays() -> None:
    assert read(TAB.model_copy(update={"default": None}), ["a", None]) == ["a", None]


@pytest.mark.parametrize(("feature", "values"), [(TAB, [1, None]), (TAGS, [[1], None])])
def test_a_default_that_is_text_among_integers_names_the_feature(feature: Any, values: list[Any]) -> None:
    with pytest.raises(InvalidInputError, match=f"holds integers, but the default of '{feature.name}' is .*integer"):
        read(feature, values)


@given(LISTS, st.integers(1, 4), st.data())
@settings(deadline=None)
def test_of_a_sequence_the_newest_are_read(lists: list[Any], count: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(lists)))
    column = pa.array(lists, pa.list_(pa.int64())).slice(start)
    feature = RECENT.model_copy(update={"max_length": count})
    assert read(feature, column) == [None if ids is None else ids[-count:] for ids in lists[start:]]


@pytest.mark.parametrize(
    ("feature", "kind"), [(RECENT, "a sequence: write lists of ids"), (BAND, "cut into buckets: write numbers")]
)
def test_a_column_of_another_type_is_named(feature: Any, kind: str) -> None:
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


def test_a_default_is_counted_encoded_and_crossed_as_if_it_had_been_given(encoder: Encoder) -> None:
    spelt_out = ROWS.set_column(ROWS.column_names.index("tab"), "tab", pa.array(["home", "home", "search", "home"]))
    assert encoder.id_mappings["tab"].ids.to_pylist() == ["home", "search"]  # type: ignore[union-attr]
    found, expected = encoder.encode(ROWS), encoder.encode(spelt_out)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.dense, expected.dense)


def test_what_a_default_fills_is_still_named_as_missing(encoder: Encoder) -> None:
    names = [feature.name for feature in SCHEMA.inputs]
    assert [[n for n, gone in zip(names, row, strict=True) if gone] for row in encoder.encode(ROWS).missing] == [
        [],
        ["tab", "band", "age"],
        ["recent"],
        ["item_id", "tab"],
    ]


def test_a_cross_is_never_named_as_missing_its_unknown_parts_are(encoder: Encoder) -> None:
    unknown = fill_features(pa.table({"item_id": pa.array([None, None], pa.int64())}), SCHEMA, {})
    found = encoder.encode(unknown)
    assert (found.ids[:, [f.name for f in SCHEMA.categoricals].index("item_tab")] == 0).all()
    assert [f.name for f, gone in zip(SCHEMA.inputs, found.missing[0], strict=True) if gone][:2] == ["item_id", "tab"]
    assert found.missing.shape == (2, len(SCHEMA.inputs)), "item_tab is no feature that is given"


def test_a_cross_is_missing_where_a_part_is_unknown_and_has_no_default(encoder: Encoder) -> None:
    crossed = encoder.encode(ROWS).ids[:, [f.name for f in SCHEMA.categoricals].index("item_tab")].tolist()
    assert [row > 0 for row in crossed] == [True, True, True, False]
    assert len(set(crossed)) == 4


def test_one_column_is_read_by_each_feature_in_its_own_way(encoder: Encoder) -> None:
    found = encoder.encode(ROWS)
    assert found.ids[:, [f.name for f in SCHEMA.categoricals].index("band")].tolist() == [1, 2, 3, 2]
    assert found.dense[[0, 2, 3], 0].tolist() == [17.0, 40.0, 20.0]


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
@settings(deadline=None, max_examples=40)
def test_a_row_alone_is_encoded_as_it_is_inside_a_table(rows: list[dict[str, Any]]) -> None:
    fitter = EncoderFitter(SCHEMA)
    fitter.add(ROWS)
    encoder = fitter.encoder()
    whole = fill_features(pa.Table.from_pylist(rows, TYPES), SCHEMA, {})
    inside = encoder.encode(whole)
    for row in range(len(rows)):
        assert_equal_batches(encoder.encode(whole.slice(row, 1)), inside.take(np.array([row])))


def test_ids_of_a_sequence_and_of_the_items_share_rows_and_only_what_is_pooled_is_counted(encoder: Encoder) -> None:
    assert encoder.id_mappings["item_id"].ids.to_pylist() == [1, 2, 3, 9]  # type: ignore[union-attr]
    (recent,) = encoder.encode(ROWS).bags
    assert recent.lengths.tolist() == [2, 1, 1, 0]
    assert recent.values.tolist() == [3, 4, 5, 0]


def test_numbers_in_buckets_must_be_finite() -> None:
    rows = fill_features(pa.table({"age": [float("nan"), 1.0, float("inf")]}), SCHEMA, {})
    bad = {f.name: broken.to_pylist() for f, broken, _ in invalid_rows(rows, SCHEMA)}
    assert bad["band"] == [True, False, True]
