"""Embedding tables: lookup, pooling of bags and concatenation of features."""

from __future__ import annotations

import pytest
import torch

from ranking.encoding.torch_batch import TorchBatch, TorchRaggedIds
from ranking.model.embeddings import INITIAL_STD, Embeddings
from ranking.schema import Schema

SCHEMA = Schema.model_validate(
    {
        "name": "small",
        "features": [
            {"name": "liked", "kind": "bag", "owner": "user", "dim": 2, "table": "item", "pooling": "sum"},
            {"name": "item", "kind": "categorical", "owner": "item", "dim": 2},
            {"name": "tags", "kind": "bag", "owner": "item", "dim": 3},
            {"name": "recent", "kind": "sequence", "owner": "user", "dim": 2, "table": "item", "pooling": "shrunk"},
        ],
        "tasks": [{"name": "click", "kind": "binary"}],
    }
)


def make_batch(ids: list[list[int]], *bags: list[list[int]]) -> TorchBatch:
    return TorchBatch(
        torch.tensor(ids),
        tuple(
            TorchRaggedIds(
                torch.tensor([i for ids in bag for i in ids], dtype=torch.int64), torch.tensor([len(i) for i in bag])
            )
            for bag in bags
        ),
        torch.zeros(len(ids), 0),
    )


def test_embeddings_concatenate_categorical_features_then_pooled_bags() -> None:
    embeddings = Embeddings(SCHEMA, {"item": 5, "tags": 4})
    item, tags = embeddings.weight("item"), embeddings.weight("tags")
    vectors = embeddings(make_batch([[3], [0]], [[1, 2, 2], []], [[0, 3], [1]], [[4], [1, 2]]))
    expected = [
        torch.cat([item[3], item[1] + 2 * item[2], (tags[0] + tags[3]) / 2, item[4] / 4]),
        torch.cat([item[0], torch.zeros(2), tags[1], (item[1] + item[2]) / 5]),
    ]
    torch.testing.assert_close(vectors, torch.stack(expected))
    assert vectors.shape == (2, embeddings.width)


@pytest.mark.parametrize("pooled", [[[], []], [[1], []]])
def test_embeddings_of_empty_bag_are_zero(pooled: list[list[int]]) -> None:
    embeddings = Embeddings(SCHEMA, {"item": 5, "tags": 4})
    vectors = embeddings(make_batch([[3], [0]], [[], []], pooled, [[], []]))
    assert torch.equal(vectors[1, 2:], torch.zeros(7))
    assert torch.equal(vectors[0, 2:4], torch.zeros(2))


def test_embeddings_shared_table_has_gradients_from_all_its_features() -> None:
    embeddings = Embeddings(SCHEMA, {"item": 5, "tags": 4})
    embeddings(make_batch([[3]], [[1]], [[0]], [[2]])).sum().backward()
    gradient = embeddings.weight("item").grad
    assert gradient is not None
    assert gradient.ne(0).any(1).tolist() == [False, True, True, True, False]


def test_embeddings_initial_values_have_documented_standard_deviation() -> None:
    weight = Embeddings(SCHEMA, {"item": 5000, "tags": 4}).weight("item")
    assert weight.shape == (5000, 2)
    assert float(weight.detach().std()) == pytest.approx(INITIAL_STD, rel=0.05)
