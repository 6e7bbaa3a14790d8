"""Frozen ranker: scoring of tables, validation of tasks and features, and independence of batching."""

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
from tests.support.one_model import weights_of

MakeModel = Callable[[], MMoE]
DrawRows = Callable[[int, int], pa.Table]


def with_all_columns(ranker: FrozenRanker, table: pa.Table) -> pa.Table:
    """Return the table with a column of nulls for each feature that it lacks."""
    for feature in ranker.schema.inputs:
        if feature.column not in table.column_names:
            table = table.append_column(feature.column, pa.nulls(table.num_rows))
    return table


def table_scores(table: pa.Table) -> np.ndarray[Any, Any]:
    return np.stack([table[name].to_numpy() for name in table.column_names if name != "score"], 1)


def test_score_returns_one_float32_column_per_task(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    scores = hand_ranker.score(draw_rows(10, 1))
    assert scores.column_names == ["click", "like", "watch", "rating", "score"]
    assert [field.type for field in scores.schema] == [pa.float32()] * 4 + [pa.float64()]
    assert scores.num_rows == 10
    probabilities = table_scores(scores.select(["click", "like"]))
    assert ((probabilities > 0) & (probabilities < 1)).all()


def test_score_returns_columns_in_requested_order(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    all_tasks = hand_ranker.score(draw_rows(10, 1))
    selected = hand_ranker.score(draw_rows(10, 1), tasks=["rating", "click"])
    assert selected.column_names == ["rating", "click", "score"]
    np.testing.assert_allclose(table_scores(selected), table_scores(all_tasks.select(["rating", "click"])), atol=1e-6)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ({"like": 2.0, "rating": -1.0}, {"like": 2.0, "rating": -1.0}),
        ({"watch": 1.0}, {"click": 1.0}),
        ({}, {"click": 1.0}),
    ],
)
def test_score_is_the_weighted_sum_of_the_tasks(
    hand_ranker: FrozenRanker, draw_rows: DrawRows, objective: dict[str, float], expected: dict[str, float]
) -> None:
    ranker = replace(hand_ranker, objective=objective)
    scores = ranker.score(draw_rows(10, 1), tasks=["click", "like", "rating"])
    total = sum(weight * scores[task].to_numpy().astype(float) for task, weight in expected.items())
    np.testing.assert_allclose(scores["score"].to_numpy(), total, rtol=1e-12)


def test_task_with_the_name_score_keeps_its_column(hand_ranker: FrozenRanker) -> None:
    task = hand_ranker.schema.tasks[0].model_copy(update={"name": "score"})
    assert hand_ranker.to_table(np.array([[0.5]], np.float32), [task]).to_pydict() == {"score": [0.5]}


@pytest.mark.parametrize("empty", [pa.table({}), pa.table({"item_id": pa.array([], pa.int64())})])
def test_score_of_no_rows_returns_empty_table(hand_ranker: FrozenRanker, empty: pa.Table) -> None:
    scores = hand_ranker.score(with_all_columns(hand_ranker, empty), tasks=["like", "click"])
    assert scores.num_rows == 0
    assert scores.schema == pa.schema([("like", pa.float32()), ("click", pa.float32()), ("score", pa.float64())])


def test_score_of_unknown_task_raises_with_known_tasks(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    with pytest.raises(InvalidInputError, match="unknown task 'klick': choose from click, like, watch, rating"):
        hand_ranker.score(draw_rows(2, 1), tasks=["click", "klick"])


def test_score_of_repeated_task_raises(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    with pytest.raises(InvalidInputError, match="repeated"):
        hand_ranker.score(draw_rows(2, 1), tasks=["click", "like", "click"])


def test_score_of_empty_task_list_raises(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    with pytest.raises(InvalidInputError) as error:
        hand_ranker.score(draw_rows(2, 1), tasks=[])
    assert error.value.field == "tasks"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_score_of_nan_or_infinite_value_raises_with_column_and_row(hand_ranker: FrozenRanker, value: float) -> None:
    rows = pa.table({"item_id": [1, 2, 3, 4], "age": [30.0, None, value, value]})
    with pytest.raises(InvalidInputError, match=r"'age', row 2: is NaN or infinite") as error:
        hand_ranker.score(with_all_columns(hand_ranker, rows))
    assert (error.value.field, error.value.row) == ("age", 2)


def test_score_of_value_without_logarithm_raises_with_column_and_row(hand_ranker: FrozenRanker) -> None:
    with pytest.raises(InvalidInputError, match="log1p") as error:
        hand_ranker.score(with_all_columns(hand_ranker, pa.table({"price": [1.0, -1.0]})))
    assert (error.value.field, error.value.row) == ("price", 1)


@pytest.mark.parametrize("value", [1e30, 1e300, -1e300])
def test_score_of_huge_finite_value_is_finite_or_raises(hand_ranker: FrozenRanker, value: float) -> None:
    try:
        rows = with_all_columns(hand_ranker, pa.table({"item_id": [1], "age": [value]}))
        scores = table_scores(hand_ranker.score(rows))
    except InvalidInputError:
        return
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("column", "values"), [("age", ["old"]), ("genres", ["drama"]), ("country", [[1]]), ("item_id", ["one"])]
)
def test_score_of_column_with_wrong_type_raises_with_its_name(
    hand_ranker: FrozenRanker, column: str, values: list[Any]
) -> None:
    with pytest.raises(InvalidInputError) as error:
        hand_ranker.score(with_all_columns(hand_ranker, pa.table({column: values})))
    assert error.value.field == column


def test_score_looks_up_features_that_the_table_omits(
    hand_ranker: FrozenRanker, hand_schema: Schema, hand_tables: dict[Owner, FeatureTable], draw_rows: DrawRows
) -> None:
    ids = draw_rows(50, 2)
    filled = fill_features(ids, hand_schema, hand_tables)
    assert "genres" not in ids.column_names
    without_tables = replace(hand_ranker, tables={})
    assert hand_ranker.score(ids).equals(without_tables.score(filled))
    nulls = with_all_columns(hand_ranker, ids)
    assert not hand_ranker.score(ids).equals(without_tables.score(nulls)), "the tables contribute to the scores"


def test_score_completed_marks_features_unknown_to_request_and_tables_as_missing(hand_ranker: FrozenRanker) -> None:
    filled = hand_ranker.complete(pa.table({"user_id": ["nobody"], "item_id": [10**6], "tab": ["home"]}))
    scores, missing = hand_ranker.score_completed(filled, hand_ranker.schema.tasks)
    names = [feature.name for feature in hand_ranker.schema.inputs]
    assert [name for name, is_missing in zip(names, missing[0].tolist(), strict=True) if not is_missing] == [
        "user_id",
        "item_id",
        "tab",
    ]
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("columns", "field", "reason"),
    [
        (
            ["item_id", "tab", "hour"],
            "user_id",
            "column 'user_id' (feature 'user_id') is missing (found: hour, item_id, tab)",
        ),
        (["user_id", "item_id", "hour"], "tab", "column 'tab' (feature 'tab') is missing (found: "),
        (["user_id", "item_id", "tab"], "hour", "column 'hour' (feature 'hour') is missing (found: "),
        (["user_id", "tab", "hour"], "item_id", "column 'item_id' (feature 'item_id') is missing"),
        (
            [],
            "user_id",
            "column 'user_id' (feature 'user_id'), column 'item_id' (feature 'item_id'), column 'tab' (feature 'tab'), "
            "column 'hour' (feature 'hour') are missing (found: no columns)",
        ),
    ],
)
@pytest.mark.parametrize("rows", [0, 2])
def test_score_of_table_without_a_feature_column_raises(
    hand_ranker: FrozenRanker, draw_rows: DrawRows, columns: list[str], field: str, reason: str, rows: int
) -> None:
    with pytest.raises(InvalidInputError) as error:
        hand_ranker.score(draw_rows(rows, 1).select(columns))
    assert error.value.field == field
    assert error.value.reason.startswith(reason)


def test_score_without_side_tables_needs_every_feature_column(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    with pytest.raises(InvalidInputError, match=r"column 'genres' \(feature 'genres'\)"):
        replace(hand_ranker, tables={}).score(draw_rows(3, 1))


def test_score_of_table_of_nulls_is_finite_and_constant(hand_ranker: FrozenRanker) -> None:
    scores = table_scores(hand_ranker.score(with_all_columns(hand_ranker, pa.table({"note": ["a", "b"]}))))
    assert np.isfinite(scores).all()
    assert (scores[0] == scores[1]).all()


def test_score_of_table_longer_than_one_batch_equals_scores_of_its_parts(
    hand_ranker: FrozenRanker, draw_rows: DrawRows
) -> None:
    rows = draw_rows(SCORE_ROWS + 500, 3)
    together = table_scores(hand_ranker.score(rows))
    cuts = [0, 700, SCORE_ROWS - 1, SCORE_ROWS + 3, len(rows)]
    parts = [hand_ranker.score(rows.slice(a, b - a)) for a, b in itertools.pairwise(cuts)]
    np.testing.assert_allclose(together, np.concatenate([table_scores(part) for part in parts]), rtol=0.0, atol=1e-6)


def test_score_of_row_does_not_depend_on_other_rows(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    rows = draw_rows(40, 4)
    together = table_scores(hand_ranker.score(rows))
    order = np.random.default_rng(0).permutation(40)
    np.testing.assert_allclose(table_scores(hand_ranker.score(rows.take(order))), together[order], rtol=0.0, atol=1e-6)
    for row in range(0, 40, 7):
        alone = table_scores(hand_ranker.score(rows.slice(row, 1)))
        np.testing.assert_allclose(alone, together[row : row + 1], rtol=0.0, atol=1e-6)


def test_count_unseen_counts_ids_outside_the_vocabulary_and_without_one_outside_the_table(
    hand_ranker: FrozenRanker,
) -> None:
    users, items = pa.array(["u1", None, "nobody", "7"]), pa.array([1, None, -1, 10**6])
    assert hand_ranker.count_unseen("user", users) == hand_ranker.count_unseen("item", items) == 2
    assert hand_ranker.count_unseen("item", items.cast(pa.string())) == 2
    assert hand_ranker.count_unseen("user", pa.nulls(3, pa.string())) == 0
    kept = [f.name for f in hand_ranker.schema.features if f.name not in ("user_id", "item_id")]
    schema, encoder = hand_ranker.schema.restricted(kept), hand_ranker.encoder.restricted(kept)
    by_table = replace(hand_ranker, schema=schema, encoder=encoder)
    assert by_table.count_unseen("user", users) == by_table.count_unseen("item", items) == 2
    assert by_table.known_ids("item") is not None
    assert by_table.knows_ids("item")
    assert replace(by_table, tables={}).known_ids("item") is None
    assert not replace(by_table, tables={}).knows_ids("item")


def test_score_ignores_chunks_extra_columns_and_column_order(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    rows = draw_rows(20, 6)
    expected = hand_ranker.score(rows)
    chunked = pa.concat_tables([rows.slice(0, 7), rows.slice(7, 0), rows.slice(7)])
    assert hand_ranker.score(chunked).equals(expected)
    assert hand_ranker.score(rows.select(rows.column_names[::-1])).equals(expected)
    assert hand_ranker.score(rows.append_column("note", pa.array(["x"] * 20))).equals(expected)


@pytest.mark.parametrize("bags", [[[], []], [["drama"], []], [[], ["drama", "news"]]])
def test_score_of_empty_bags_equals_dense_model(
    hand_ranker: FrozenRanker, make_model: MakeModel, bags: list[list[str]]
) -> None:
    rows = hand_ranker.complete(
        pa.table({"genres": pa.array(bags, pa.list_(pa.string())), "words": [[], []], "liked": [[], []]})
    )
    scores, _ = hand_ranker.score_completed(rows, hand_ranker.schema.tasks)
    with torch.inference_mode():
        outputs = make_model()(TorchBatch.from_numpy(hand_ranker.encoder.encode(rows))).numpy()
    np.testing.assert_allclose(scores, to_probabilities(outputs, hand_ranker.schema.tasks), rtol=0.0, atol=1e-5)


def test_score_does_not_modify_weights_and_is_repeatable(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    before = {name: weight.copy() for name, weight in weights_of(hand_ranker).items()}
    first = hand_ranker.score(draw_rows(30, 8))
    assert hand_ranker.score(draw_rows(30, 8)).equals(first)
    for name, weight in weights_of(hand_ranker).items():
        np.testing.assert_array_equal(weight, before[name], name)
