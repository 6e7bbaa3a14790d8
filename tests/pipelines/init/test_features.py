from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.init.column_profile import ColumnProfile
from pipelines.init.features import guess_feature, id_feature
from pipelines.init.guesses import FeatureGuess, LeftOut, OwnerGuess

ROWS = 400
RANDOM = np.random.default_rng(0)
CONTEXT = OwnerGuess("context", "", sure=True)


def profile(name: str, values: Any) -> ColumnProfile:
    return ColumnProfile(name, pa.chunked_array([pa.array(values)]))


def feature(name: str, values: Any) -> FeatureGuess:
    guess = guess_feature(profile(name, values), lambda _: CONTEXT)
    assert isinstance(guess, FeatureGuess), guess
    return guess


def left_out(name: str, values: Any) -> str:
    guess = guess_feature(profile(name, values), lambda _: CONTEXT)
    assert isinstance(guess, LeftOut), guess
    return guess.reason


@pytest.mark.parametrize(
    ("name", "values", "kind", "options"),
    [
        ("tab", [i % 7 for i in range(ROWS)], "categorical", {"dim": 4}),
        ("author_id", [i % 150 for i in range(ROWS)], "categorical", {}),
        ("age", [i % 70 for i in range(ROWS)], "numeric", {}),
        ("flag", [bool(i % 2) for i in range(ROWS)], "categorical", {"dim": 4}),
        ("country", ["de", "fr"] * (ROWS // 2), "categorical", {"dim": 4}),
        ("price", RANDOM.lognormal(0, 3, ROWS), "numeric", {"transform": "log1p"}),
        ("height", RANDOM.normal(170, 10, ROWS), "numeric", {}),
        ("change", RANDOM.standard_cauchy(ROWS), "buckets", {"count": 20, "dim": 8}),
        ("tags", [["a", "b"], ["a"], [], None] * (ROWS // 4), "bag", {"dim": 4}),
        ("history", [[1, 2], [3], [], None] * (ROWS // 4), "sequence", {}),
        ("genres", ["a|b", "a", "b|c", "c|d|a"] * (ROWS // 4), "bag", {"dim": 4}),
    ],
)
def test_kind_and_options(name: str, values: Any, kind: str, options: dict[str, Any]) -> None:
    guess = feature(name, values)
    assert (guess.kind, guess.options) == (kind, options)


def test_text_with_separators_is_split_into_lists() -> None:
    guess = feature("genres", ["Action|Comedy", "Drama|Action", "Drama|Comedy", "Action"] * 100)
    assert guess.reason == 'text split at "|" into lists; 3 distinct elements'
    assert guess.convert is not None
    assert guess.convert(pa.array(["x|y"])).to_pylist() == [["x", "y"]]


def test_ranges_are_not_lists() -> None:
    ranges = ["(0,10]", "(10,50]", "(50,100]", "(100,150]", "0"]
    assert feature("follow_range", ranges * (ROWS // 5)).kind == "categorical"


def test_only_negative_value_stands_for_unknown() -> None:
    guess = feature("fans_count", [float(i) for i in range(ROWS - 100)] + [-124.0] * 100)
    assert "the only negative value -124 (25.0%) is converted to null" in guess.reason
    assert guess.convert is not None


def test_nan_and_infinity_become_null() -> None:
    guess = feature("score", [*RANDOM.random(ROWS), float("nan"), float("inf")])
    assert "NaN or infinite in 2 rows, converted to null" in guess.reason
    assert guess.convert is not None


def test_position_is_read_in_training_only() -> None:
    guess = feature("position", [1 + i % 8 for i in range(ROWS)])
    assert guess.options["training_only"]
    assert feature("rank", [1000 * (1 + i % 80) for i in range(ROWS)]).kind == "numeric"


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("campaign", ["spring"] * ROWS, "constant: spring"),
        ("empty", pa.nulls(ROWS, pa.float64()), "null in every row of the sample"),
        ("row_id", list(range(ROWS)), "a different value in every row"),
        ("uuid", [f"{i:032x}" for i in range(ROWS)], "a different value in every row"),
        ("title", [f"The film {i // 2}" for i in range(ROWS)], "free text: 200 distinct values in 400 rows"),
        ("payload", [{"a": 1}] * ROWS, "type struct<a: int64>: write numbers, text, or lists of ids"),
        ("embedding", [[0.5, 0.1]] * ROWS, "type list<item: double>: write numbers, text, or lists of ids"),
        ("upload_date", ["2026-01-01", "2026-01-02"] * (ROWS // 2), "a time: write a number"),
        ("huge", [1e300, 2.0] * (ROWS // 2), "numbers beyond 1e+18"),
        ("", [1, 2] * (ROWS // 2), "the column has an empty name"),
    ],
)
def test_columns_that_cannot_be_features_are_left_out(name: str, values: Any, reason: str) -> None:
    assert left_out(name, values).startswith(reason)


def test_many_repeated_integers_could_be_ids() -> None:
    assert feature("lecturer", [7 * (i % 600) for i in range(6000)]).unsure == "could also be ids (categorical)"
    assert feature("views", [7 * (i % 600) for i in range(6000)]).unsure is None


def test_integers_with_many_values_beside_zero_are_numeric_or_uncertain() -> None:
    values = [0] * 900 + list(range(1, 101))
    for name in ("wage per hour", "pay per hour"):
        guess = feature(name, values)
        assert (guess.kind, guess.options) == ("numeric", {"transform": "log1p"})
    guess = feature("category_sum", values)
    assert (guess.kind, guess.unsure) == ("categorical", "could also be numeric: 90% are 0")
    assert feature("brand_id", values).unsure is None
    assert feature("hour", [i % 24 for i in range(ROWS)]).unsure is None


def test_weight_as_a_feature_is_uncertain() -> None:
    grams = [70_000.0 + i % 90 for i in range(ROWS)]
    assert feature("weight", grams).unsure == "could also be the sample weight ([columns] weight)"
    assert left_out("instance weight", grams).startswith("a sample weight by its name")


def test_ids_that_do_not_repeat_are_not_a_feature() -> None:
    assert isinstance(id_feature(profile("user_id", list(range(ROWS))), CONTEXT), LeftOut)
    assert isinstance(id_feature(profile("user_id", [i % 9 for i in range(ROWS)]), CONTEXT), FeatureGuess)
