"""A frozen ranker: tables in, tables of scores out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from ranking.encoding.feature_table import FeatureTable, fill_features
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import InvalidInputError
from ranking.frozen.calibration import to_probabilities
from ranking.frozen.ranker import SCORE_ROWS, FrozenRanker
from ranking.model.mmoe import MMoE
from ranking.schema import Owner, Schema

MakeModel = Callable[[], MMoE]
DrawRows = Callable[[int, int], pa.Table]


def table_scores(table: pa.Table) -> np.ndarray[Any, Any]:
    return np.stack([column.to_numpy() for column in table.columns], 1)


def test_scores_are_a_float32_column_for_each_task(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    found = hand_ranker.score(draw_rows(10, 1))
    assert found.column_names == ["click", "like", "watch", "rating"]
    assert [field.type for field in found.schema] == [pa.float32()] * 4
    assert found.num_rows == 10
    probabilities = table_scores(found.select(["click", "like"]))
    assert ((probabilities > 0) & (probabilities < 1)).all()


def test_columns_stand_in_the_order_asked_for(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    every = hand_ranker.score(draw_rows(10, 1))
    some = hand_ranker.score(draw_rows(10, 1), tasks=["rating", "click"])
    assert some.column_names == ["rating", "click"]
    np.testing.assert_allclose(table_scores(some), table_scores(every.select(["rating", "click"])), atol=1e-6)


@pytest.mark.parametrize("empty", [pa.table({}), pa.table({"item_id": pa.array([], pa.int64())})])
def test_no_rows_give_no_scores(hand_ranker: FrozenRanker, empty: pa.Table) -> None:
    found = hand_ranker.score(empty, tasks=["like", "click"])
    assert found.num_rows == 0
    assert found.schema == pa.schema([("like", pa.float32()), ("click", pa.float32())])


def test_an_unknown_task_is_refused_with_those_that_there_are(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    with pytest.raises(InvalidInputError, match="unknown task 'klick': choose from click, like, watch, rating"):
        hand_ranker.score(draw_rows(2, 1), tasks=["click", "klick"])


def test_a_task_asked_for_twice_is_refused(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    with pytest.raises(InvalidInputError, match="repeated"):
        hand_ranker.score(draw_rows(2, 1), tasks=["click", "like", "click"])


def test_asking_for_no_task_is_refused(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    with pytest.raises(InvalidInputError) as bad:
        hand_ranker.score(draw_rows(2, 1), tasks=[])
    assert bad.value.field == "tasks"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused_with_its_column_and_row(
    hand_ranker: FrozenRanker, value: float
) -> None:
    rows = pa.table({"item_id": [1, 2, 3, 4], "age": [30.0, None, value, value]})
    with pytest.raises(InvalidInputError, match=r"'age', row 2: is NaN or infinite") as bad:
        hand_ranker.score(rows)
    assert (bad.value.field, bad.value.row) == ("age", 2)


def test_a_number_without_a_logarithm_is_refused_with_its_column_and_row(hand_ranker: FrozenRanker) -> None:
    with pytest.raises(InvalidInputError, match="log1p") as bad:
        hand_ranker.score(pa.table({"price": [1.0, -1.0]}))
    assert (bad.value.field, bad.value.row) == ("price", 1)


@pytest.mark.parametrize("value", [1e30, 1e300, -1e300])
def test_a_finite_number_of_any_size_is_scored_or_refused_never_nan(hand_ranker: FrozenRanker, value: float) -> None:
    try:
        found = table_scores(hand_ranker.score(pa.table({"item_id": [1], "age": [value]})))
    except InvalidInputError:
        return
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    ("column", "values"), [("age", ["old"]), ("genres", ["drama"]), ("country", [[1]]), ("item_id", ["one"])]
)
def test_a_column_of_the_wrong_type_is_refused_by_name(
    hand_ranker: FrozenRanker, column: str, values: list[Any]
) -> None:
    with pytest.raises(InvalidInputError) as bad:
        hand_ranker.score(pa.table({column: values}))
    assert bad.value.field == column


def test_features_that_are_left_out_score_as_if_they_were_given(
    hand_ranker: FrozenRanker, hand_schema: Schema, hand_tables: dict[Owner, FeatureTable], draw_rows: DrawRows
) -> None:
    ids = draw_rows(50, 2)
    whole = fill_features(ids, hand_schema, hand_tables)
    assert "genres" not in ids.column_names
    without_tables = replace(hand_ranker, tables={})
    assert hand_ranker.score(ids).equals(without_tables.score(whole))
    assert not hand_ranker.score(ids).equals(without_tables.score(ids)), "the tables matter"


def test_what_is_unknown_everywhere_is_missing(hand_ranker: FrozenRanker) -> None:
    whole = hand_ranker.complete(pa.table({"user_id": ["nobody"], "item_id": [10**6], "tab": ["home"]}))
    scored, missing = hand_ranker.score_completed(whole, hand_ranker.schema.tasks)
    names = [feature.name for feature in hand_ranker.schema.inputs]
    assert [name for name, gone in zip(names, missing[0].tolist(), strict=True) if not gone] == [
        "user_id",
        "item_id",
        "tab",
    ]
    assert np.isfinite(scored).all()


def test_a_table_without_any_column_of_the_schema_is_scored(hand_ranker: FrozenRanker) -> None:
    found = table_scores(hand_ranker.score(pa.table({"note": ["a", "b"]})))
    assert np.isfinite(found).all()
    assert (found[0] == found[1]).all()


def test_a_table_longer_than_a_batch_scores_as_its_parts_do(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    rows = draw_rows(SCORE_ROWS + 500, 3)
    whole = table_scores(hand_ranker.score(rows))
    cuts = [0, 700, SCORE_ROWS - 1, SCORE_ROWS + 3, len(rows)]
    parts = [hand_ranker.score(rows.slice(a, b - a)) for a, b in itertools.pairwise(cuts)]
    np.testing.assert_allclose(whole, np.concatenate([table_scores(part) for part in parts]), rtol=0.0, atol=1e-6)


def test_a_row_scores_alike_in_any_company(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    rows = draw_rows(40, 4)
    whole = table_scores(hand_ranker.score(rows))
    order = np.random.default_rng(0).permutation(40)
    np.testing.assert_allclose(table_scores(hand_ranker.score(rows.take(order))), whole[order], rtol=0.0, atol=1e-6)
    for row in range(0, 40, 7):
        alone = table_scores(hand_ranker.score(rows.slice(row, 1)))
        np.testing.assert_allclose(alone, whole[row : row + 1], rtol=0.0, atol=1e-6)


def test_chunks_extra_columns_and_column_order_do_not_matter(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    rows = draw_rows(20, 6)
    expected = hand_ranker.score(rows)
    chunked = pa.concat_tables([rows.slice(0, 7), rows.slice(7, 0), rows.slice(7)])
    assert hand_ranker.score(chunked).equals(expected)
    assert hand_ranker.score(rows.select(rows.column_names[::-1])).equals(expected)
    assert hand_ranker.score(rows.append_column("note", pa.array(["x"] * 20))).equals(expected)


@pytest.mark.parametrize("bags", [[[], []], [["drama"], []], [[], ["drama", "news"]]])
def test_bags_may_be_empty(hand_ranker: FrozenRanker, make_model: MakeModel, bags: list[list[str]]) -> None:
    rows = hand_ranker.complete(
        pa.table({"genres": pa.array(bags, pa.list_(pa.string())), "words": [[], []], "liked": [[], []]})
    )
    found, _ = hand_ranker.score_completed(rows, hand_ranker.schema.tasks)
    with torch.inference_mode():
        outputs = make_model()(TorchBatch.from_numpy(hand_ranker.encoder.encode(rows))).numpy()
    np.testing.assert_allclose(found, to_probabilities(outputs, hand_ranker.schema.tasks), rtol=0.0, atol=1e-5)


def test_scoring_changes_nothing(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    before = {name: weight.copy() for name, weight in hand_ranker.weights.items()}
    first = hand_ranker.score(draw_rows(30, 8))
    assert hand_ranker.score(draw_rows(30, 8)).equals(first)
    for name, weight in hand_ranker.weights.items():
        np.testing.assert_array_equal(weight, before[name], name)
