"""Embedding tables that are updated in the backward pass, compared with plain embeddings."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipelines.training.distributed import DistContext
from pipelines.training.embedding_tables import BLOCK_ROWS, EmbeddingTables
from pipelines.training.tensor_file import TensorBlocks
from ranking.encoding.torch_batch import TorchBatch, TorchRaggedIds
from ranking.model.embeddings import INITIAL_STD, Embeddings
from ranking.schema import Schema

ROWS = 9
RATE = 0.1

KINDS: list[dict[str, Any]] = [
    {"kind": "categorical"},
    {"kind": "bag", "pooling": "mean"},
    {"kind": "bag", "pooling": "sum"},
    {"kind": "sequence", "pooling": "mean", "table": "f0"},
    {"kind": "sequence", "pooling": "shrunk", "table": "f0"},
]


def schema_of(kinds: list[dict[str, Any]], dims: list[int]) -> Schema:
    """Build a schema whose first feature is categorical; other features may share its table."""
    features = [{"name": "f0", "kind": "categorical", "owner": "item", "dim": dims[0]}]
    for i, (kind, dim) in enumerate(zip(kinds, dims[1:], strict=True), start=1):
        width = dims[0] if kind.get("table") else dim
        features.append({"name": f"f{i}", "owner": "item", "column": f"f{i}", "dim": width, **kind})
    return Schema.model_validate({"name": "x", "features": features, "tasks": [{"name": "y", "kind": "binary"}]})


def draw_batch(schema: Schema, batch: int, seed: int) -> TorchBatch:
    random = torch.Generator().manual_seed(seed)

    def ids(count: int) -> Tensor:
        return torch.randint(ROWS, (count,), generator=random)

    def bag() -> TorchRaggedIds:
        lengths = torch.randint(4, (batch,), generator=random)
        return TorchRaggedIds(ids(int(lengths.sum())), lengths)

    single = torch.stack([ids(batch) for _ in schema.categoricals], 1)
    return TorchBatch(single, tuple(bag() for _ in schema.bags), torch.zeros(batch, 0))


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
    dims = draw(st.lists(st.sampled_from([4, 8]), min_size=len(kinds) + 1, max_size=len(kinds) + 1))
    return schema_of(kinds, dims)


def plain_and_fused(schema: Schema) -> tuple[Embeddings, Embeddings]:
    """Return embeddings with equal tables: plain ones, and ones that are updated in the backward pass."""
    plain = Embeddings(schema, dict.fromkeys(schema.tables, ROWS))
    fused = copy.deepcopy(plain)
    weights = {name: plain.weight(name).detach() for name in schema.tables}
    EmbeddingTables(fused, RATE, 5, DistContext(), 0, weights)
    return plain, fused


@given(schemas(), st.integers(0, 100))
@settings(max_examples=60)
def test_forward_equals_plain_embeddings_for_all_feature_kinds(schema: Schema, seed: int) -> None:
    plain, fused = plain_and_fused(schema)
    inputs = draw_batch(schema, 5, seed)
    torch.testing.assert_close(fused(inputs), plain(inputs))


@given(schemas(), st.integers(0, 100))
@settings(max_examples=40)
def test_backward_updates_rows_by_row_wise_adagrad(schema: Schema, seed: int) -> None:
    """The update of each row in the batch is −rate · g / √(mean of g² over the row); other rows do not change."""
    plain, fused = plain_and_fused(schema)
    inputs = draw_batch(schema, 5, seed)
    weights = torch.randn(plain.width, generator=torch.Generator().manual_seed(seed))
    for embeddings in (plain, fused):
        (embeddings(inputs) @ weights).sum().backward()
    for name in schema.tables:
        before, gradient = plain.weight(name).detach(), plain.weight(name).grad
        assert gradient is not None
        size = gradient.square().mean(1, keepdim=True).sqrt()
        expected = before - torch.where(size > 0, RATE * gradient / size.clamp(min=1e-12), 0.0)
        torch.testing.assert_close(fused.weight(name).detach(), expected, rtol=1e-3, atol=1e-5)


def contents(tensors: Mapping[str, TensorBlocks]) -> dict[str, Tensor]:
    """Return whole tensors, and check that they have the promised shape."""
    whole = {name: torch.cat(list(tensor.blocks())) for name, tensor in tensors.items()}
    assert {name: tuple(value.shape) for name, value in whole.items()} == {n: t.shape for n, t in tensors.items()}
    return whole


@pytest.fixture
def tables() -> tuple[Embeddings, EmbeddingTables]:
    embeddings = Embeddings(schema_of(KINDS[:2], [4, 4, 8]), {"f0": ROWS, "f1": ROWS, "f2": ROWS}, "meta")
    return embeddings, EmbeddingTables(embeddings, RATE, 5, DistContext(), 0)


def test_backward_with_zero_learning_rate_changes_nothing(tables: tuple[Embeddings, EmbeddingTables]) -> None:
    embeddings, fused_tables = tables
    fused_tables.set_learning_rate(0.0)
    before = {name: weight.clone() for name, weight in contents(fused_tables.weights()).items()}
    embeddings(draw_batch(schema_of(KINDS[:2], [4, 4, 8]), 5, 0)).sum().backward()
    assert all(torch.equal(before[name], weight) for name, weight in contents(fused_tables.weights()).items())


def test_state_loaded_in_place_restores_weights_and_momentum(tables: tuple[Embeddings, EmbeddingTables]) -> None:
    embeddings, fused_tables = tables
    inputs = draw_batch(schema_of(KINDS[:2], [4, 4, 8]), 5, 0)
    embeddings(inputs).sum().backward()
    kept = {name: value.clone() for name, value in fused_tables.state().items()}
    assert {name.rpartition(".")[2] for name in kept} == {"weight", "momentum"}
    embeddings(inputs).sum().backward()
    after = {name: value.clone() for name, value in fused_tables.state().items()}
    for name, value in fused_tables.state().items():
        value.detach().copy_(kept[name])
    embeddings(inputs).sum().backward()
    assert all(torch.equal(after[name], value) for name, value in fused_tables.state().items())


def test_initial_weights_are_normal_and_depend_on_seed_and_table_only() -> None:
    """Large tables are drawn in blocks, of which the last is shorter."""
    schema, rows = schema_of(KINDS[:1], [4, 4]), BLOCK_ROWS + 1_000

    def draw(seed: int) -> dict[str, Tensor]:
        embeddings = Embeddings(schema, {"f0": rows, "f1": rows}, "meta")
        torch.manual_seed(torch.seed())
        return contents(EmbeddingTables(embeddings, RATE, 5, DistContext(), seed).weights())

    first, same, other = draw(1), draw(1), draw(2)
    assert all(torch.equal(first[name], same[name]) for name in first)
    different = [first["f0"], first["f1"], other["f0"], first["f0"][BLOCK_ROWS:]]
    assert len({float(weight.sum()) for weight in different}) == len(different)
    assert float(first["f0"].std()) == pytest.approx(INITIAL_STD, rel=0.01)
    assert first["f0"].unique(dim=0).shape == first["f0"].shape


def test_weights_of_an_earlier_run_are_extended_by_copies_of_the_oov_row() -> None:
    known = torch.arange(20.0).reshape(5, 4)
    embeddings = Embeddings(schema_of([], [4]), {"f0": 8}, "meta")
    tables = EmbeddingTables(embeddings, RATE, 5, DistContext(), 0, {"f0": known})
    assert torch.equal(contents(tables.weights())["f0"], torch.cat([known, known[1].expand(3, 4)]))


def test_sums_of_new_rows_are_the_mean_of_the_known_ones() -> None:
    tables = EmbeddingTables(Embeddings(schema_of([], [4]), {"f0": 6}, "meta"), RATE, 5, DistContext(), 0)
    tables.load_sums({"f0": torch.tensor([0.0, 2.0, 4.0]), "removed": torch.ones(2)})
    assert contents(tables.sums())["f0"].tolist() == [0.0, 2.0, 4.0, 3.0, 3.0, 3.0]
