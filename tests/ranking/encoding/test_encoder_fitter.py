"""Fitting an encoder, one batch of rows at a time."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranking.encoding import encoder_fitter
from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.feature_table import fill_features
from ranking.encoding.vocabulary import MISSING, OOV, Bucketizer, HashBuckets, Vocabulary
from ranking.errors import InvalidInputError
from ranking.schema import Schema


def schema_of(*features: dict[str, Any]) -> Schema:
    return Schema.model_validate(
        {
            "name": "small",
            "features": [{"owner": "context", **feature} for feature in features],
            "tasks": [{"name": "click", "kind": "binary"}],
        }
    )


def fit(schema: Schema, *batches: dict[str, Any]) -> Encoder:
    fitter = EncoderFitter(schema)
    for batch in batches:
        fitter.add(fill_features(pa.table(batch), schema, {}))
    return fitter.encoder()


def vocabulary(encoder: Encoder, table: str) -> list[Any]:
    space = encoder.id_mappings[table]
    assert isinstance(space, Vocabulary)
    ids: list[Any] = space.ids.to_pylist()
    return ids


BRAND = {"name": "brand", "kind": "categorical"}
TAGS = {"name": "tags", "kind": "bag"}
AGE = {"name": "age", "kind": "numeric"}

# Ids.


def test_ids_stand_by_falling_count_and_ties_by_value() -> None:
    encoder = fit(schema_of(BRAND), {"brand": [5, 3, 9, 9, 3, 1, None, None, None]})
    assert vocabulary(encoder, "brand") == [3, 9, 1, 5]


def test_ids_are_counted_over_all_batches() -> None:
    encoder = fit(schema_of(BRAND), {"brand": ["a", "b"]}, {"brand": ["b", None]}, {"brand": pa.nulls(2)})
    assert vocabulary(encoder, "brand") == ["b", "a"]


@pytest.mark.parametrize(("min_count", "kept"), [(1, ["a", "b", "c"]), (2, ["a", "b"]), (3, ["a"]), (4, [])])
def test_ids_seen_fewer_times_than_min_count_are_unseen(min_count: int, kept: list[str]) -> None:
    encoder = fit(schema_of({**BRAND, "min_count": min_count}), {"brand": ["a", "b", "c", "a", "b", "a"]})
    assert vocabulary(encoder, "brand") == kept
    rows = encoder.id_mappings["brand"].rows(pa.array(["a", "b", "c"]), "brand").tolist()
    assert rows == [OOV + 1 + i if i < len(kept) else OOV for i in range(3)]


def test_ids_in_bags_are_counted_one_by_one() -> None:
    encoder = fit(schema_of(TAGS), {"tags": [["x", "y", "x"], None, [], [None, "z", "x", "y"]]})
    assert vocabulary(encoder, "tags") == ["x", "y", "z"]


def test_features_that_share_a_table_are_counted_together() -> None:
    schema = schema_of({**BRAND, "min_count": 2}, {**TAGS, "table": "brand", "min_count": 2})
    encoder = fit(schema, {"brand": ["a", "b", "c"], "tags": [["b"], ["c", "c"], ["d"]]})
    assert vocabulary(encoder, "brand") == ["c", "b"]


def test_hashed_ids_keep_no_vocabulary() -> None:
    encoder = fit(schema_of({**BRAND, "hash_buckets": 5}), {"brand": ["a", "b"]})
    space = encoder.id_mappings["brand"]
    assert isinstance(space, HashBuckets)
    assert space.size == 6


def test_a_column_of_nulls_gives_an_empty_vocabulary_that_can_be_asked() -> None:
    encoder = fit(schema_of(BRAND, TAGS), {"brand": pa.nulls(2), "tags": pa.nulls(2)})
    assert vocabulary(encoder, "brand") == vocabulary(encoder, "tags") == []
    for ids in (pa.array(["a", None]), pa.array([1, None])):
        assert encoder.id_mappings["brand"].rows(ids, "brand").tolist() == [OOV, MISSING]


def test_integers_in_one_batch_and_text_in_another_name_the_column() -> None:
    for one, other, says in ([1], ["a"], "holds text, but integers"), (["a"], [1], "holds integers, but text"):
        with pytest.raises(InvalidInputError, match=f"{says} in rows read before: write ids of one type") as bad:
            fit(schema_of(BRAND), {"brand": one}, {"brand": other})
        assert bad.value.field == "brand"


@pytest.mark.parametrize(("brand", "tags"), [("a", 1), (1, "a"), (1, "1")])
def test_integers_and_text_in_one_table_name_both_columns(brand: Any, tags: Any) -> None:
    with pytest.raises(InvalidInputError, match="in column 'brand', which shares table 'brand': write ids") as bad:
        fit(schema_of(BRAND, {**TAGS, "table": "brand"}), {"brand": [brand], "tags": [[tags]]})
    assert bad.value.field == "tags"


@pytest.mark.parametrize("nulls", [0, 1])
@pytest.mark.parametrize(
    ("feature", "default", "value", "says"),
    [
        (BRAND, 3, "a", "holds text, but the default of 'brand' is 3: write it in quotes"),
        (BRAND, True, "a", "holds text, but the default of 'brand' is True: write it in quotes"),
        (BRAND, "3", 3, "holds integers, but the default of 'brand' is '3': write an integer"),
        (TAGS, [3], ["a"], r"holds text, but the default of 'tags' is \[3\]: write it in quotes"),
        ({**BRAND, "hash_buckets": 9}, 3, "a", "holds text, but the default of 'brand' is 3: write it in quotes"),
    ],
)
def test_a_default_of_the_other_type_names_the_column(
    feature: dict[str, Any], default: Any, value: Any, says: str, nulls: int
) -> None:
    with pytest.raises(InvalidInputError, match=says):
        fit(schema_of({**feature, "default": default}), {feature["name"]: [value] + [None] * nulls})


@pytest.mark.parametrize(
    ("feature", "default", "values"),
    [(BRAND, True, [False, None]), (BRAND, 3, [None, 4]), (TAGS, [], [["a"], None]), (TAGS, ["a"], [[], None])],
)
def test_a_default_of_its_columns_type_is_counted(feature: dict[str, Any], default: Any, values: list[Any]) -> None:
    fit(schema_of({**feature, "default": default}), {feature["name"]: values})


# Numbers.


def test_standardised_numbers_have_mean_0_and_variance_1_over_the_training_rows() -> None:
    values = [1.0, 4.0, 4.0, 9.0, 30.0]
    encoder = fit(schema_of(AGE), {"age": values[:2]}, {"age": values[2:]})
    dense = encoder.encode(pa.table({"age": values})).dense.astype(np.float64)
    assert dense.mean() == pytest.approx(0.0, abs=1e-7)
    assert dense.var() == pytest.approx(1.0)


def test_log1p_numbers_are_standardised_after_the_logarithm() -> None:
    values = [0.0, 1.0, 10.0, 1000.0]
    encoder = fit(schema_of({**AGE, "transform": "log1p"}), {"age": values})
    logs = np.log1p(values)
    expected = (logs - logs.mean()) / logs.std()
    assert encoder.encode(pa.table({"age": values})).dense[:, 0].tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_numbers_without_transform_stay_as_they_are() -> None:
    encoder = fit(schema_of({**AGE, "transform": "none"}), {"age": [10.0, 20.0]})
    assert encoder.encode(pa.table({"age": [10.0, -3.0]})).dense[:, 0].tolist() == [10.0, -3.0]


@pytest.mark.parametrize("transform", ["standardise", "log1p", "none"])
def test_a_missing_number_becomes_the_training_mean(transform: str) -> None:
    encoder = fit(schema_of({**AGE, "transform": transform}), {"age": [1.0, 3.0, None, 8.0]})
    values = np.array([1.0, 3.0, 8.0])
    mean = float(np.expm1(np.log1p(values).mean())) if transform == "log1p" else float(values.mean())
    found = encoder.encode(pa.table({"age": [None, mean]})).dense[:, 0]
    np.testing.assert_allclose(found[0], found[1], rtol=0.0, atol=1e-6)


def test_a_flag_for_missing_is_made_only_where_training_rows_lacked_the_number() -> None:
    schema = schema_of(AGE, {"name": "price", "kind": "numeric"}, {"name": "size", "kind": "numeric"})
    encoder = fit(
        schema,
        {"age": [1.0, 2.0], "price": [1.0, 2.0], "size": [1.0, 2.0]},
        {"age": [3.0, 4.0], "price": [None, 2.0], "size": [3.0, None]},
    )
    assert [encoder.scales[name].has_missing_indicator for name in ("age", "price", "size")] == [False, True, True]
    assert encoder.dense_size == 5
    dense = encoder.encode(pa.table({"age": [None, 1.0], "price": [None, 1.0], "size": [1.0, None]})).dense
    assert dense[:, 3:].tolist() == [[1.0, 0.0], [0.0, 1.0]], "flags of price and size; age has none"


@pytest.mark.parametrize("value", [0.0, 5.0, 0.1, -1e-3, 1e9 + 0.1])
@pytest.mark.parametrize("cut", [1, 3, 10])
def test_a_number_that_never_varied_is_not_blown_up(value: float, cut: int) -> None:
    column = [value] * 10
    encoder = fit(schema_of(AGE), {"age": column[:cut]}, {"age": [*column[cut:], value]})
    assert encoder.scales["age"].scale == 1.0
    found = encoder.encode(pa.table({"age": [value, value + 1.0]})).dense[:, 0]
    assert found.tolist() == pytest.approx([0.0, 1.0], abs=1e-3)


def test_a_number_that_was_always_null_is_zero_and_flagged() -> None:
    encoder = fit(schema_of(AGE), {"age": pa.nulls(3)})
    assert encoder.encode(pa.table({"age": [None, 2.0]})).dense.tolist() == [[0.0, 1.0], [2.0, 0.0]]


# Batches.

CUT_SCHEMA = schema_of(
    {**BRAND, "min_count": 2},
    {**TAGS, "table": "brand", "min_count": 2},
    {"name": "words", "kind": "bag"},
    AGE,
    {"name": "price", "kind": "numeric", "transform": "none"},
)
CUT_TYPES = pa.schema(
    [
        ("brand", pa.int64()),
        ("tags", pa.list_(pa.int64())),
        ("words", pa.list_(pa.string())),
        ("age", pa.int64()),
        ("price", pa.float64()),
    ]
)
CUT_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "brand": st.none() | st.integers(0, 3),
            "tags": st.none() | st.lists(st.none() | st.integers(0, 3), max_size=3),
            "words": st.none() | st.lists(st.sampled_from(["a", "b", "c"]), max_size=2),
            "age": st.none() | st.integers(-100, 100),
            "price": st.none() | st.floats(-1e6, 1e6),
        }
    ),
    max_size=12,
)


@given(CUT_ROWS, st.sets(st.integers(0, 12)))
@settings(max_examples=80, deadline=None)
def test_batches_of_any_cut_give_the_encoder_of_one_batch(rows: list[dict[str, Any]], cuts: set[int]) -> None:
    whole = fill_features(pa.Table.from_pylist(rows, CUT_TYPES), CUT_SCHEMA, {})
    once, often = EncoderFitter(CUT_SCHEMA), EncoderFitter(CUT_SCHEMA)
    once.add(whole)
    places = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for start, end in itertools.pairwise(places):
        often.add(whole.slice(start, end - start))
    a, b = once.encoder(), often.encoder()
    for table in ("brand", "words"):
        assert vocabulary(a, table) == vocabulary(b, table)
    for name, scale in a.scales.items():
        other = b.scales[name]
        assert scale.has_missing_indicator == other.has_missing_indicator
        for key in ("shift", "scale", "fill"):
            assert getattr(other, key) == pytest.approx(getattr(scale, key), rel=1e-9, abs=1e-9)


# Buckets.


def boundaries(encoder: Encoder) -> list[float]:
    space = encoder.id_mappings["band"]
    assert isinstance(space, Bucketizer)
    found: list[float] = space.boundaries.tolist()
    return found


BAND = {"name": "band", "column": "age", "kind": "buckets", "count": 4}


def test_buckets_hold_as_many_rows_each() -> None:
    ages = np.random.default_rng(0).permutation(np.arange(100.0))
    encoder = fit(schema_of(BAND), {"age": ages[:30]}, {"age": ages[30:]}, {"age": [None]})
    rows = encoder.id_mappings["band"].rows(pa.array(ages), "age")
    assert np.bincount(rows).tolist() == [0, 25, 25, 25, 25]


@pytest.mark.parametrize(
    ("ages", "expected"),
    [([0, 0, 0, 0, 0, 1, 2, 3], [2]), ([5, 5, 5], []), ([None, None], []), ([], []), ([1, 2], [2])],
)
def test_ties_and_few_numbers_leave_fewer_buckets_and_none_empty(ages: list[Any], expected: list[float]) -> None:
    encoder = fit(schema_of(BAND), {"age": pa.array(ages, pa.float64())})
    assert boundaries(encoder) == expected


def test_given_boundaries_are_kept() -> None:
    fixed = {"name": "band", "column": "age", "kind": "buckets", "boundaries": [1, 2.5]}
    assert boundaries(fit(schema_of(fixed), {"age": [7.0]})) == [1.0, 2.5]


@given(st.lists(st.integers(0, 3000), max_size=4).map(sorted))
@settings(deadline=None, max_examples=20)
def test_quantiles_do_not_depend_on_how_rows_are_cut_into_batches(cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder_fitter, "SAMPLED_NUMBERS", 500)
        ages = np.random.default_rng(1).normal(size=3000)
        parts = [{"age": ages[a:b]} for a, b in itertools.pairwise([0, *cuts, 3000])]
        whole = fit(schema_of(BAND), {"age": ages})
        assert boundaries(fit(schema_of(BAND), *parts)) == boundaries(whole)


def test_a_sample_of_bounded_size_gives_buckets_of_nearly_equal_size() -> None:
    sample = encoder_fitter._Sample()
    random = np.random.default_rng(2)
    for _ in range(6):
        sample.add(pa.array(random.exponential(size=50_000)))
    assert len(sample._values) == encoder_fitter.SAMPLED_NUMBERS
    shares = np.diff(np.concatenate([[0], 1 - np.exp(-sample.boundaries(10)), [1]]))
    assert np.abs(shares - 0.1).max() < 0.005
