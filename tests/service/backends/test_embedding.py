"""What a half's features look up in NumPy is what PyTorch's look-up, which the GPU has, gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ranking.encoding.batch import EncodedBatch, Float32, RaggedIds
from ranking.encoding.request_batch import FeatureGroup
from ranking.encoding.torch_batch import TorchBatch
from ranking.schema import Schema
from service.backends.embedding import Embedding
from service.backends.forward import embedding as in_pytorch

NUMBERS = 2
ROWS = {"user": 5, "city": 3, "hour": 4, "tab": 6, "device": 2, "words": 7, "genres": 8}
"""Of each table."""

FEATURES: list[dict[str, Any]] = [
    {"name": "user", "kind": "categorical", "dim": 4},
    {"name": "city", "kind": "categorical", "dim": 4},
    {"name": "friend", "kind": "categorical", "dim": 4, "table": "user"},
    {"name": "hour", "kind": "categorical", "dim": 1},
    {"name": "tab", "kind": "categorical", "dim": 3},
    {"name": "device", "kind": "categorical", "dim": 4},  # as wide as the first, but not beside them
    {"name": "words", "kind": "bag", "dim": 3, "pooling": "sum"},
    {"name": "genres", "kind": "bag", "dim": 2, "pooling": "mean"},
    {"name": "liked", "kind": "bag", "dim": 4, "pooling": "sum", "table": "user"},
]


def side(*names: str) -> FeatureGroup:
    """The half that has these features, and numbers."""
    features = [{**feature, "owner": "item"} for feature in FEATURES if feature["name"] in names]
    tasks = [{"name": "click", "kind": "binary"}]
    schema = Schema.model_validate({"name": "looked-up", "features": features, "tasks": tasks})
    width = sum(feature.dim for feature in schema.sparse) + NUMBERS
    return FeatureGroup(schema.categoricals, schema.bags, [], [], [], [], list(range(width)))


WHOLE = side(*(feature["name"] for feature in FEATURES))
WEIGHTS: dict[str, Float32] = {
    f"embedding.{feature['name']}": np.random.default_rng(i).normal(size=(ROWS[name], feature["dim"])).astype("f4")
    for i, feature in enumerate(FEATURES)
    if (name := feature["name"]) in ROWS
}


def bag(lists: Sequence[Sequence[int]]) -> RaggedIds:
    return RaggedIds(
        np.array([row for rows in lists for row in rows], np.int64), np.array([*map(len, lists)], np.int64)
    )


def inputs(
    ids: Sequence[Sequence[int]], bags: Sequence[Sequence[Sequence[int]]], columns: FeatureGroup
) -> EncodedBatch:
    """Encoded rows of the half; their numbers count up."""
    rows = len(ids)
    return EncodedBatch(
        np.array(ids, np.int64).reshape(rows, len(columns.singles)),
        tuple(map(bag, bags)),
        np.arange(rows * NUMBERS, dtype=np.float32).reshape(rows, NUMBERS),
        np.zeros((rows, 0), np.bool_),
    )


def drawn(lists: Sequence[Sequence[Sequence[int]]]) -> EncodedBatch:
    """Rows with these lists, a bag's after another's; the ids of the other features are drawn."""
    random, rows = np.random.default_rng(0), len(lists[0])
    return inputs([[random.integers(ROWS[f.table]) for f in WHOLE.singles] for _ in range(rows)], lists, WHOLE)


@st.composite
def some_inputs(draw: st.DrawFn) -> EncodedBatch:
    rows = draw(st.integers(0, 6))

    def each(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.lists(values, min_size=rows, max_size=rows))

    ids = each(st.tuples(*(st.integers(0, ROWS[feature.table] - 1) for feature in WHOLE.singles)))
    bags = [each(st.lists(st.integers(0, ROWS[feature.table] - 1), max_size=5)) for feature in WHOLE.bags]
    return inputs(ids, bags, WHOLE)


def assert_as_in_pytorch(columns: FeatureGroup, rows: EncodedBatch, tolerance: float = 1e-6) -> None:
    found = Embedding(columns, WEIGHTS)(rows)
    theirs = in_pytorch.Embedding(columns, {name: torch.from_numpy(table) for name, table in WEIGHTS.items()})
    assert (found.dtype, found.shape) == (np.float32, (len(rows), theirs.width))
    np.testing.assert_allclose(found, theirs(TorchBatch.from_numpy(rows)).numpy(), rtol=tolerance, atol=tolerance)


class TestAsInPytorch:
    @settings(deadline=None, max_examples=200)
    @given(rows=some_inputs())
    def test_whatever_is_looked_up(self, rows: EncodedBatch) -> None:
        assert_as_in_pytorch(WHOLE, rows)

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
    def test_with(self, lists: list[list[int]], others: str) -> None:
        few = [[row % 5 for row in rows] for rows in lists]  # the table of the last has five rows
        rest = {"the same": few, "empty": [[] for _ in lists], "full": [[i % 5, 4] for i, _ in enumerate(lists)]}
        assert_as_in_pytorch(WHOLE, drawn([lists, rest[others], few]))

    def test_long_lists(self) -> None:
        random = np.random.default_rng(1)
        lists = [[random.integers(5, size=length).tolist() for length in (0, 300, 1, 0, 77)] for _ in WHOLE.bags]
        assert_as_in_pytorch(WHOLE, drawn(lists), tolerance=1e-5)  # PyTorch rounds after every row that it adds

    @pytest.mark.parametrize("names", [["user"], ["tab", "hour"], ["words"], ["user", "liked"], ["friend", "genres"]])
    @pytest.mark.parametrize("rows", [0, 1, 3])
    def test_a_half_of_few_features(self, names: list[str], rows: int) -> None:
        columns = side(*names)
        ids = [[i % 2 for _ in columns.singles] for i in range(rows)]
        assert_as_in_pytorch(columns, inputs(ids, [[[1, 2][:i] for i in range(rows)] for _ in columns.bags], columns))


class TestByHand:
    def test_rows_of_the_tables_stand_side_by_side_then_bags_then_numbers(self) -> None:
        (found,) = Embedding(WHOLE, WEIGHTS)(inputs([[4, 2, 3, 0, 5, 1]], [[[6, 0]], [[7, 1]], [[2]]], WHOLE))
        table = {name.removeprefix("embedding."): weight for name, weight in WEIGHTS.items()}
        singles = [*table["user"][4], *table["city"][2], *table["user"][3]]
        singles += [*table["hour"][0], *table["tab"][5], *table["device"][1]]
        bags = [*table["words"][6] + table["words"][0], *(table["genres"][7] + table["genres"][1]) / 2]
        np.testing.assert_array_equal(found, np.array([*singles, *bags, *table["user"][2], 0.0, 1.0], np.float32))

    def test_of_an_empty_list_there_is_nothing_whether_summed_or_averaged(self) -> None:
        columns = side("words", "genres")
        found = Embedding(columns, WEIGHTS)(inputs([[], []], [[[], [3]], [[2], []]], columns))
        words, genres = WEIGHTS["embedding.words"], WEIGHTS["embedding.genres"]
        np.testing.assert_array_equal(found[0], np.array([0, 0, 0, *genres[2], 0, 1], np.float32))
        np.testing.assert_array_equal(found[1], np.array([*words[3], 0, 0, 2, 3], np.float32))

    def test_a_half_of_numbers_alone_is_its_numbers(self) -> None:
        columns = FeatureGroup([], [], [], [], [], [], [0, 1])
        rows = inputs([[], []], [], columns)
        np.testing.assert_array_equal(Embedding(columns, WEIGHTS)(rows), rows.dense)

    def test_what_was_looked_up_is_no_view_of_the_tables(self) -> None:
        columns = side("user")
        before = WEIGHTS["embedding.user"].copy()
        Embedding(columns, WEIGHTS)(inputs([[1]], [], columns))[:] = np.nan
        np.testing.assert_array_equal(WEIGHTS["embedding.user"], before)
