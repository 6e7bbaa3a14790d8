"""Embedding look-ups in NumPy and in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranking.encoding.batch import EncodedBatch, Float32, RaggedIds
from ranking.encoding.bins import Bins
from ranking.encoding.request_batch import FeatureGroup
from ranking.encoding.torch_batch import TorchBatch
from ranking.schema import Schema
from service.backends.onnx import EmbeddingLookup
from service.backends.torch_modules import Embedding

NUMBERS = 2
ROWS = {"user": 5, "city": 3, "hour": 4, "tab": 6, "device": 2, "words": 7, "genres": 8}
"""Number of rows of each table."""

FEATURES: list[dict[str, Any]] = [
    {"name": "user", "kind": "categorical", "dim": 4},
    {"name": "city", "kind": "categorical", "dim": 4},
    {"name": "friend", "kind": "categorical", "dim": 4, "table": "user"},
    {"name": "hour", "kind": "categorical", "dim": 1},
    {"name": "tab", "kind": "categorical", "dim": 3},
    {"name": "device", "kind": "categorical", "dim": 4},  # width of the first features, but not adjacent to them
    {"name": "words", "kind": "bag", "dim": 3, "pooling": "sum"},
    {"name": "genres", "kind": "bag", "dim": 2, "pooling": "mean"},
    {"name": "liked", "kind": "bag", "dim": 4, "pooling": "shrunk", "table": "user"},
]


def feature_group(*names: str) -> FeatureGroup:
    """A feature group with the named features and dense values."""
    features = [{**feature, "owner": "item"} for feature in FEATURES if feature["name"] in names]
    tasks = [{"name": "click", "kind": "binary"}]
    schema = Schema.model_validate({"name": "looked-up", "features": features, "tasks": tasks})
    width = sum(feature.dim for feature in schema.sparse) + NUMBERS
    return FeatureGroup(schema.categoricals, schema.bags, [], [], [], [], Bins.of({}), list(range(width)))


ALL_FEATURES = feature_group(*(feature["name"] for feature in FEATURES))
WEIGHTS: dict[str, Float32] = {
    f"embedding.{feature['name']}": np.random.default_rng(i).normal(size=(ROWS[name], feature["dim"])).astype("f4")
    for i, feature in enumerate(FEATURES)
    if (name := feature["name"]) in ROWS
}


def bag(lists: Sequence[Sequence[int]]) -> RaggedIds:
    return RaggedIds(
        np.array([row for rows in lists for row in rows], np.int64), np.array([*map(len, lists)], np.int64)
    )


def inputs(ids: Sequence[Sequence[int]], bags: Sequence[Sequence[Sequence[int]]], group: FeatureGroup) -> EncodedBatch:
    """Encoded rows of a feature group; dense values are consecutive numbers."""
    rows = len(ids)
    return EncodedBatch(
        np.array(ids, np.int64).reshape(rows, len(group.singles)),
        tuple(map(bag, bags)),
        np.arange(rows * NUMBERS, dtype=np.float32).reshape(rows, NUMBERS),
        np.zeros((rows, 0), np.bool_),
    )


def draw_rows(lists: Sequence[Sequence[Sequence[int]]]) -> EncodedBatch:
    """Rows with the given lists per bag; ids of the other features are random."""
    random, rows = np.random.default_rng(0), len(lists[0])
    return inputs(
        [[random.integers(ROWS[f.table]) for f in ALL_FEATURES.singles] for _ in range(rows)], lists, ALL_FEATURES
    )


@st.composite
def encoded_rows(draw: st.DrawFn) -> EncodedBatch:
    rows = draw(st.integers(0, 6))

    def draw_column(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.lists(values, min_size=rows, max_size=rows))

    ids = draw_column(st.tuples(*(st.integers(0, ROWS[feature.table] - 1) for feature in ALL_FEATURES.singles)))
    bags = [draw_column(st.lists(st.integers(0, ROWS[feature.table] - 1), max_size=5)) for feature in ALL_FEATURES.bags]
    return inputs(ids, bags, ALL_FEATURES)


def assert_equal_in_torch(group: FeatureGroup, rows: EncodedBatch, tolerance: float = 1e-6) -> None:
    embeddings = EmbeddingLookup(group, WEIGHTS)(rows)
    module = Embedding(group, {name: torch.from_numpy(table) for name, table in WEIGHTS.items()})
    assert (embeddings.dtype, embeddings.shape) == (np.float32, (len(rows), module.width))
    np.testing.assert_allclose(embeddings, module(TorchBatch.from_numpy(rows)).numpy(), rtol=tolerance, atol=tolerance)


@given(rows=encoded_rows())
def test_embedding_lookup_random_rows_match_torch(rows: EncodedBatch) -> None:
    assert_equal_in_torch(ALL_FEATURES, rows)


@pytest.mark.parametrize(
    "lists",
    [
        pytest.param([[], [1, 2], [3]], id="an empty list before full ones"),
        pytest.param([[1], [], [], [0, 6, 6], [], [2]], id="empty lists among full ones"),
        pytest.param([[1, 1], [4], []], id="an empty list after full ones"),
        pytest.param([[], [], []], id="all lists empty"),
        pytest.param([[]], id="one row whose list is empty"),
        pytest.param([[2]], id="one row"),
        pytest.param([], id="no rows"),
    ],
)
@pytest.mark.parametrize("others", ["the same", "empty", "full"])
def test_embedding_lookup_empty_and_filled_lists_match_torch(lists: list[list[int]], others: str) -> None:
    small_ids = [[row % 5 for row in rows] for rows in lists]  # the table of the last bag has five rows
    second_bag = {
        "the same": small_ids,
        "empty": [[] for _ in lists],
        "full": [[i % 5, 4] for i, _ in enumerate(lists)],
    }
    assert_equal_in_torch(ALL_FEATURES, draw_rows([lists, second_bag[others], small_ids]))


def test_embedding_lookup_long_lists_match_torch() -> None:
    random = np.random.default_rng(1)
    lists = [[random.integers(5, size=length).tolist() for length in (0, 300, 1, 0, 77)] for _ in ALL_FEATURES.bags]
    assert_equal_in_torch(ALL_FEATURES, draw_rows(lists), tolerance=1e-5)  # PyTorch rounds after each added row


@pytest.mark.parametrize("names", [["user"], ["tab", "hour"], ["words"], ["user", "liked"], ["friend", "genres"]])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_embedding_lookup_few_features_match_torch(names: list[str], rows: int) -> None:
    group = feature_group(*names)
    ids = [[i % 2 for _ in group.singles] for i in range(rows)]
    assert_equal_in_torch(group, inputs(ids, [[[1, 2][:i] for i in range(rows)] for _ in group.bags], group))


def test_embedding_lookup_joins_singles_bags_and_dense_values() -> None:
    (embeddings,) = EmbeddingLookup(ALL_FEATURES, WEIGHTS)(
        inputs([[4, 2, 3, 0, 5, 1]], [[[6, 0]], [[7, 1]], [[2]]], ALL_FEATURES)
    )
    table = {name.removeprefix("embedding."): weight for name, weight in WEIGHTS.items()}
    singles = [*table["user"][4], *table["city"][2], *table["user"][3]]
    singles += [*table["hour"][0], *table["tab"][5], *table["device"][1]]
    bags = [*table["words"][6] + table["words"][0], *(table["genres"][7] + table["genres"][1]) / 2]
    np.testing.assert_array_equal(embeddings, np.array([*singles, *bags, *table["user"][2] / 4, 0.0, 1.0], np.float32))


def test_embedding_lookup_empty_list_is_zero_for_sum_and_mean() -> None:
    group = feature_group("words", "genres")
    embeddings = EmbeddingLookup(group, WEIGHTS)(inputs([[], []], [[[], [3]], [[2], []]], group))
    words, genres = WEIGHTS["embedding.words"], WEIGHTS["embedding.genres"]
    np.testing.assert_array_equal(embeddings[0], np.array([0, 0, 0, *genres[2], 0, 1], np.float32))
    np.testing.assert_array_equal(embeddings[1], np.array([*words[3], 0, 0, 2, 3], np.float32))


def test_embedding_lookup_only_dense_values_returns_them() -> None:
    group = FeatureGroup([], [], [], [], [], [], Bins.of({}), [0, 1])
    rows = inputs([[], []], [], group)
    np.testing.assert_array_equal(EmbeddingLookup(group, WEIGHTS)(rows), rows.dense)


def test_embedding_lookup_result_does_not_alias_tables() -> None:
    group = feature_group("user")
    before = WEIGHTS["embedding.user"].copy()
    EmbeddingLookup(group, WEIGHTS)(inputs([[1]], [], group))[:] = np.nan
    np.testing.assert_array_equal(WEIGHTS["embedding.user"], before)
