"""Encoder fitting in batches."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranking.encoding import encoder_fitter
from ranking.encoding.bins import Bins
from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.feature_table import fill_features
from ranking.encoding.id_rows import MISSING, OOV
from ranking.encoding.vocabulary import Bucketizer, HashBuckets, Vocabulary
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
    mapping = encoder.id_mappings[table]
    assert isinstance(mapping, Vocabulary)
    ids: list[Any] = mapping.ids().to_pylist()
    return ids


BRAND = {"name": "brand", "kind": "categorical"}
TAGS = {"name": "tags", "kind": "bag"}
AGE = {"name": "age", "kind": "numeric"}

# Ids.


def test_vocabulary_is_in_descending_order_of_count_then_by_value() -> None:
    encoder = fit(schema_of(BRAND), {"brand": [5, 3, 9, 9, 3, 1, None, None, None]})
    assert vocabulary(encoder, "brand") == [3, 9, 1, 5]


def test_vocabulary_counts_ids_over_all_batches() -> None:
    encoder = fit(schema_of(BRAND), {"brand": ["a", "b"]}, {"brand": ["b", None]}, {"brand": pa.nulls(2)})
    assert vocabulary(encoder, "brand") == ["b", "a"]


@pytest.mark.parametrize(("min_count", "kept"), [(1, ["a", "b", "c"]), (2, ["a", "b"]), (3, ["a"]), (4, [])])
def test_ids_below_min_count_are_oov(min_count: int, kept: list[str]) -> None:
    encoder = fit(schema_of({**BRAND, "min_count": min_count}), {"brand": ["a", "b", "c", "a", "b", "a"]})
    assert vocabulary(encoder, "brand") == kept
    rows = encoder.id_mappings["brand"].rows(pa.array(["a", "b", "c"]), "brand").tolist()
    assert rows == [OOV + 1 + i if i < len(kept) else OOV for i in range(3)]


def test_vocabulary_counts_each_id_of_a_bag() -> None:
    encoder = fit(schema_of(TAGS), {"tags": [["x", "y", "x"], None, [], [None, "z", "x", "y"]]})
    assert vocabulary(encoder, "tags") == ["x", "y", "z"]


def test_vocabulary_counts_features_sharing_a_table_together() -> None:
    schema = schema_of({**BRAND, "min_count": 2}, {**TAGS, "table": "brand", "min_count": 2})
    encoder = fit(schema, {"brand": ["a", "b", "c"], "tags": [["b"], ["c", "c"], ["d"]]})
    assert vocabulary(encoder, "brand") == ["c", "b"]


def test_hashed_ids_have_no_vocabulary() -> None:
    encoder = fit(schema_of({**BRAND, "hash_buckets": 5}), {"brand": ["a", "b"]})
    mapping = encoder.id_mappings["brand"]
    assert isinstance(mapping, HashBuckets)
    assert mapping.size == 6


def test_null_column_gives_an_empty_vocabulary() -> None:
    encoder = fit(schema_of(BRAND, TAGS), {"brand": pa.nulls(2), "tags": pa.nulls(2)})
    assert vocabulary(encoder, "brand") == vocabulary(encoder, "tags") == []
    for ids in (pa.array(["a", None]), pa.array([1, None])):
        assert encoder.id_mappings["brand"].rows(ids, "brand").tolist() == [OOV, MISSING]


def test_integers_and_text_in_different_batches_are_rejected() -> None:
    for first, second, reason in ([1], ["a"], "holds text, but integers"), (["a"], [1], "holds integers, but text"):
        with pytest.raises(InvalidInputError, match=f"{reason} in rows read before: write ids of one type") as caught:
            fit(schema_of(BRAND), {"brand": first}, {"brand": second})
        assert caught.value.field == "brand"


@pytest.mark.parametrize(("brand", "tags"), [("a", 1), (1, "a"), (1, "1")])
def test_integers_and_text_in_a_shared_table_are_rejected(brand: Any, tags: Any) -> None:
    with pytest.raises(InvalidInputError, match="in column 'brand', which shares table 'brand': write ids") as caught:
        fit(schema_of(BRAND, {**TAGS, "table": "brand"}), {"brand": [brand], "tags": [[tags]]})
    assert caught.value.field == "tags"


@pytest.mark.parametrize("nulls", [0, 1])
@pytest.mark.parametrize(
    ("feature", "default", "value", "reason"),
    [
        (BRAND, 3, "a", "holds text, but the default of 'brand' is 3: write it in quotes"),
        (BRAND, True, "a", "holds text, but the default of 'brand' is true: write it in quotes"),
        (BRAND, "3", 3, "holds integers, but the default of 'brand' is '3': write an integer"),
        (TAGS, [3], ["a"], r"holds text, but the default of 'tags' is \[3\]: write it in quotes"),
        ({**BRAND, "hash_buckets": 9}, 3, "a", "holds text, but the default of 'brand' is 3: write it in quotes"),
    ],
)
def test_default_of_another_type_than_the_column_is_rejected(
    feature: dict[str, Any], default: Any, value: Any, reason: str, nulls: int
) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        fit(schema_of({**feature, "default": default}), {feature["name"]: [value] + [None] * nulls})


@pytest.mark.parametrize(
    ("feature", "default", "values"),
    [(BRAND, True, [False, None]), (BRAND, 3, [None, 4]), (TAGS, [], [["a"], None]), (TAGS, ["a"], [[], None])],
)
def test_default_of_the_columns_type_is_accepted(feature: dict[str, Any], default: Any, values: list[Any]) -> None:
    fit(schema_of({**feature, "default": default}), {feature["name"]: values})


# Numbers.


def test_standardized_numbers_have_mean_0_and_variance_1() -> None:
    values = [1.0, 4.0, 4.0, 9.0, 30.0]
    encoder = fit(schema_of(AGE), {"age": values[:2]}, {"age": values[2:]})
    dense = encoder.encode(pa.table({"age": values})).dense.astype(np.float64)
    assert dense.mean() == pytest.approx(0.0, abs=1e-7)
    assert dense.var() == pytest.approx(1.0)


def test_log1p_numbers_are_standardized_after_the_logarithm() -> None:
    values = [0.0, 1.0, 10.0, 1000.0]
    encoder = fit(schema_of({**AGE, "transform": "log1p"}), {"age": values})
    logs = np.log1p(values)
    expected = (logs - logs.mean()) / logs.std()
    assert encoder.encode(pa.table({"age": values})).dense[:, 0].tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_numbers_without_transform_are_unchanged() -> None:
    encoder = fit(schema_of({**AGE, "transform": "none"}), {"age": [10.0, 20.0]})
    assert encoder.encode(pa.table({"age": [10.0, -3.0]})).dense[:, 0].tolist() == [10.0, -3.0]


@pytest.mark.parametrize("transform", ["standardise", "log1p", "none"])
def test_missing_number_is_encoded_as_the_training_mean(transform: str) -> None:
    encoder = fit(schema_of({**AGE, "transform": transform}), {"age": [1.0, 3.0, None, 8.0]})
    values = np.array([1.0, 3.0, 8.0])
    mean = float(np.expm1(np.log1p(values).mean())) if transform == "log1p" else float(values.mean())
    result = encoder.encode(pa.table({"age": [None, mean]})).dense[:, 0]
    np.testing.assert_allclose(result[0], result[1], rtol=0.0, atol=1e-6)


def test_missing_indicator_exists_only_for_features_with_nulls_in_training() -> None:
    schema = schema_of(AGE, {"name": "price", "kind": "numeric"}, {"name": "size", "kind": "numeric"})
    encoder = fit(
        schema,
        {"age": [1.0, 2.0], "price": [1.0, 2.0], "size": [1.0, 2.0]},
        {"age": [3.0, 4.0], "price": [None, 2.0], "size": [3.0, None]},
    )
    assert [encoder.scales[name].has_missing_indicator for name in ("age", "price", "size")] == [False, True, True]
    assert encoder.dense_size == 5
    dense = encoder.encode(pa.table({"age": [None, 1.0], "price": [None, 1.0], "size": [1.0, None]})).dense
    assert dense[:, 3:].tolist() == [[1.0, 0.0], [0.0, 1.0]], "missing indicators of price and size; age has none"


@pytest.mark.parametrize("transform", ["standardise", "none"])
@pytest.mark.parametrize(("nulls", "indicated"), [(0, False), (1, False), (9, False), (10, True)])
def test_missing_indicator_exists_only_if_one_percent_of_the_training_rows_are_null(
    transform: str, nulls: int, indicated: bool
) -> None:
    prices = [None] * nulls + [float(i) for i in range(1000 - nulls)]
    encoder = fit(schema_of({"name": "price", "kind": "numeric", "transform": transform}), {"price": prices})
    assert encoder.scales["price"].has_missing_indicator == indicated
    mean = sum(range(1000 - nulls)) / (1000 - nulls)
    absent, average = encoder.encode(pa.table({"price": [None, mean]})).dense[:, 0]
    assert absent == pytest.approx(average, abs=1e-5)


@pytest.mark.parametrize("value", [0.0, 5.0, 0.1, -1e-3, 1e9 + 0.1])
@pytest.mark.parametrize("cut", [1, 3, 10])
def test_constant_number_has_scale_1(value: float, cut: int) -> None:
    column = [value] * 10
    encoder = fit(schema_of(AGE), {"age": column[:cut]}, {"age": [*column[cut:], value]})
    assert encoder.scales["age"].scale == 1.0
    result = encoder.encode(pa.table({"age": [value, value + 1.0]})).dense[:, 0]
    assert result.tolist() == pytest.approx([0.0, 1.0], abs=1e-3)


def test_number_that_is_always_null_is_0_with_indicator() -> None:
    encoder = fit(schema_of(AGE), {"age": pa.nulls(3)})
    assert encoder.encode(pa.table({"age": [None, 2.0]})).dense.tolist() == [[0.0, 1.0], [2.0, 0.0]]


# Batches.

BATCH_SCHEMA = schema_of(
    {**BRAND, "min_count": 2},
    {**TAGS, "table": "brand", "min_count": 2},
    {"name": "words", "kind": "bag"},
    AGE,
    {"name": "price", "kind": "numeric", "transform": "none"},
)
BATCH_TYPES = pa.schema(
    [
        ("brand", pa.int64()),
        ("tags", pa.list_(pa.int64())),
        ("words", pa.list_(pa.string())),
        ("age", pa.int64()),
        ("price", pa.float64()),
    ]
)
BATCH_ROWS = st.lists(
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


@given(BATCH_ROWS, st.sets(st.integers(0, 12)))
def test_encoder_does_not_depend_on_the_division_into_batches(rows: list[dict[str, Any]], cuts: set[int]) -> None:
    whole = fill_features(pa.Table.from_pylist(rows, BATCH_TYPES), BATCH_SCHEMA, {})
    one_batch, many_batches = EncoderFitter(BATCH_SCHEMA), EncoderFitter(BATCH_SCHEMA)
    one_batch.add(whole)
    offsets = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    for start, end in itertools.pairwise(offsets):
        many_batches.add(whole.slice(start, end - start))
    expected, actual = one_batch.encoder(), many_batches.encoder()
    for table in ("brand", "words"):
        assert vocabulary(actual, table) == vocabulary(expected, table)
    for name, scale in expected.scales.items():
        other = actual.scales[name]
        assert scale.has_missing_indicator == other.has_missing_indicator
        for key in ("shift", "scale", "fill"):
            assert getattr(other, key) == pytest.approx(getattr(scale, key), rel=1e-9, abs=1e-9)


def with_positions(rows: list[dict[str, Any]]) -> Iterator[tuple[pa.Table, npt.NDArray[np.int64]]]:
    """Yield each row as a table, and its position in a log of which every second row is bad."""
    table = fill_features(pa.Table.from_pylist(rows, BATCH_TYPES), BATCH_SCHEMA, {})
    for row in range(len(rows)):
        yield table.slice(row, 1), np.array([2 * row])


@given(BATCH_ROWS, st.sets(st.integers(0, 12)))
def test_encoder_of_parts_is_the_same_wherever_they_are_read(rows: list[dict[str, Any]], cuts: set[int]) -> None:
    """A worker gets an empty fitter and returns the part; its numbers are equal to the last bit."""
    here, elsewhere = EncoderFitter(BATCH_SCHEMA), EncoderFitter(BATCH_SCHEMA)
    empty = pickle.dumps(elsewhere)
    batches = list(with_positions(rows))
    for start, end in itertools.pairwise([0, *sorted(cuts), len(rows)]):
        parts = here.part(), pickle.loads(empty).part()
        for part in parts:
            for batch in batches[start:end]:
                part.add(*batch)
        here.merge(parts[0])
        elsewhere.merge(pickle.loads(pickle.dumps(parts[1])))
    assert elsewhere.encoder().scales == here.encoder().scales
    for table in ("brand", "words"):
        assert vocabulary(elsewhere.encoder(), table) == vocabulary(here.encoder(), table)


def test_ids_of_parts_have_one_type() -> None:
    schema = schema_of(BRAND)
    fitter = EncoderFitter(schema)
    for ids in ([1, 2], ["a"]):
        part = fitter.part()
        part.add(fill_features(pa.table({"brand": ids}), schema, {}))
        if ids == ["a"]:
            with pytest.raises(InvalidInputError, match="holds text, but integers in rows read before: write ids of"):
                fitter.merge(part)
        else:
            fitter.merge(part)


# Buckets.


def boundaries(encoder: Encoder) -> list[float]:
    mapping = encoder.id_mappings["band"]
    assert isinstance(mapping, Bucketizer)
    values: list[float] = mapping.boundaries.tolist()
    return values


BAND = {"name": "band", "column": "age", "kind": "buckets", "count": 4}


def test_quantile_buckets_hold_equal_numbers_of_rows() -> None:
    ages = np.random.default_rng(0).permutation(np.arange(100.0))
    encoder = fit(schema_of(BAND), {"age": ages[:30]}, {"age": ages[30:]}, {"age": [None]})
    rows = encoder.id_mappings["band"].rows(pa.array(ages), "age")
    assert np.bincount(rows).tolist() == [0, 25, 25, 25, 25]


@pytest.mark.parametrize(
    ("ages", "expected"),
    [([0, 0, 0, 0, 0, 1, 2, 3], [2]), ([5, 5, 5], []), ([None, None], []), ([], []), ([1, 2], [2])],
)
def test_ties_and_few_numbers_give_fewer_buckets(ages: list[Any], expected: list[float]) -> None:
    encoder = fit(schema_of(BAND), {"age": pa.array(ages, pa.float64())})
    assert boundaries(encoder) == expected


def test_configured_boundaries_are_kept() -> None:
    fixed = {"name": "band", "column": "age", "kind": "buckets", "boundaries": [1, 2.5]}
    assert boundaries(fit(schema_of(fixed), {"age": [7.0]})) == [1.0, 2.5]


def fit_whole_and_divided(feature: dict[str, Any], cuts: list[int]) -> tuple[Encoder, Encoder]:
    """Fit a feature of 3,000 ages in one batch, and in batches that end at the cuts."""
    ages = np.random.default_rng(1).normal(size=3000)
    parts = [{"age": ages[a:b]} for a, b in itertools.pairwise([0, *cuts, 3000])]
    return fit(schema_of(feature), {"age": ages}), fit(schema_of(feature), *parts)


@given(st.lists(st.integers(0, 3000), max_size=4).map(sorted))
@settings(max_examples=20)
def test_quantiles_do_not_depend_on_the_division_into_batches(cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder_fitter, "SAMPLED_NUMBERS", 500)
        whole, divided = fit_whole_and_divided(BAND, cuts)
        assert boundaries(divided) == boundaries(whole)


def test_quantiles_of_a_bounded_sample_are_nearly_exact() -> None:
    random = np.random.default_rng(2)
    encoder = fit(schema_of({**BAND, "count": 10}), *({"age": random.exponential(size=50_000)} for _ in range(6)))
    shares = np.diff(np.concatenate([[0], 1 - np.exp(-np.array(boundaries(encoder))), [1]]))
    assert np.abs(shares - 0.1).max() < 0.005


# Bins of numbers.


def edges(encoder: Encoder) -> tuple[float, ...]:
    return encoder.scales["age"].edges


@pytest.mark.parametrize("transform", ["standardise", "log1p", "none"])
def test_bins_hold_the_same_number_of_training_rows(transform: str) -> None:
    ages = np.random.default_rng(3).exponential(2.0, size=4000)
    encoder = fit(schema_of({**AGE, "transform": transform, "bins": 5, "clip": "none"}), {"age": ages})
    dense = encoder.encode(pa.table({"age": ages})).dense[:, 0]
    counts, _ = np.histogram(dense, edges(encoder))
    assert len(edges(encoder)) == 6
    assert np.abs(counts - 800).max() <= 2


def test_bins_default_to_8_and_end_at_the_clipped_number() -> None:
    encoder = fit(schema_of(AGE), {"age": [*range(100), 1e6]})
    assert len(encoder.bins) == 8
    assert edges(encoder)[-1] == 5.0


def test_bins_of_equal_edges_are_merged() -> None:
    encoder = fit(schema_of(AGE), {"age": [0.0] * 60 + [1.0, 2.0, 3.0, 4.0] * 10})
    assert 3 <= len(edges(encoder)) < 9
    assert list(edges(encoder)) == sorted(set(edges(encoder)))


@pytest.mark.parametrize("ages", [[3.0] * 5, [0.0] + [1.0] * 20, [None, None], [2.0, None]])
def test_number_with_one_bin_or_none_has_no_bins(ages: list[float | None]) -> None:
    encoder = fit(schema_of(AGE), {"age": pa.array(ages, pa.float64())})
    assert edges(encoder) == ()


def test_bins_are_wide_enough_for_float32() -> None:
    ages = np.concatenate([np.linspace(0.0, 1e-9, 500), np.linspace(1.0, 2.0, 500)])
    bins = fit_bins(ages)
    assert len(bins) > 2
    assert (bins.ends - bins.starts > 8 * np.spacing(np.abs(bins.ends))).all()
    assert len(fit_bins(np.array([0.0, 1e-44, 2e-44] * 10), transform="none")) == 0


@pytest.mark.parametrize("transform", ["standardise", "log1p", "none"])
def test_outlier_does_not_remove_bins(transform: str) -> None:
    ages = np.append(np.random.default_rng(5).lognormal(size=2000), 1e6)
    assert len(fit_bins(ages, transform)) == 8


def fit_bins(ages: Any, transform: str = "standardise") -> Bins:
    return fit(schema_of({**AGE, "transform": transform}), {"age": ages}).bins


def test_rare_shares_count_ids_below_min_count() -> None:
    fitter = EncoderFitter(schema_of({**BRAND, "min_count": 3}, TAGS))
    fitter.add(
        pa.table({"brand": pa.array([1, 1, 1, 2, 2, None]), "tags": pa.array([[1]] * 6, pa.large_list(pa.int64()))})
    )
    assert fitter.rare_shares() == {"brand": pytest.approx(2 / 5), "tags": 0.0}


def test_number_without_bins_has_no_edges() -> None:
    encoder = fit(schema_of({**AGE, "bins": 0}), {"age": range(100)})
    assert edges(encoder) == ()
    assert len(encoder.bins) == 0


@given(st.lists(st.integers(0, 3000), max_size=4).map(sorted))
@settings(max_examples=20)
def test_edges_do_not_depend_on_the_division_into_batches(cuts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder_fitter, "SAMPLED_FOR_BINS", 500)
        whole, divided = fit_whole_and_divided(AGE, cuts)
        assert edges(divided) == pytest.approx(edges(whole))
