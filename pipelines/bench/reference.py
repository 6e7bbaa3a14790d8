"""The reference model: a bundle of the size that the aims in docs/benchmarks.md are about, with random weights.

500 inputs (30 categorical features of 16 numbers each, 20 dense ones) → 8 experts 256-256 → 8 tasks with towers of 64;
each task chose 2 experts, all of them together 4. What the weights are makes no difference to what they cost.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from pipelines.bench.dense import choose
from ranking.artifacts import bundle
from ranking.encoding.columns import FeatureTable
from ranking.encoding.encoder import Encoder, Scale
from ranking.encoding.vocabulary import Vocabulary
from ranking.frozen.freeze import freeze
from ranking.frozen.onnx_export import onnx_body
from ranking.frozen.ranker import FrozenRanker
from ranking.gates.config import DSelectKConfig
from ranking.model.embeddings import Embeddings
from ranking.model.mmoe import MMoE, ModelConfig
from ranking.schema import Owner, Schema
from ranking.selection import Selection, flops

FEATURES: dict[Owner, tuple[int, int]] = {"user": (10, 7), "context": (5, 3), "item": (15, 10)}
"""Owner → categorical features, the ids of users and items among them, and dense ones."""
DIM = 16
CHOICES = ((1, 3), (4, 6), (1, 4), (3, 6), (1, 6), (3, 4), (1, 3), (4, 6))
"""Experts of each task."""
MODEL = ModelConfig(experts=8, expert_layers=(256, 256), tower_layers=(64,), gate=DSelectKConfig(k=2))
VALUES = 1_000
"""Ids that a categorical feature can have."""
KNOWN = 100_000
"""The most users and items with an embedding of their own."""
GOLDEN_ROWS = 32


def write_reference(folder: Path, items: int, users: int, seed: int = 0) -> FrozenRanker:
    """Writes the bundle, with tables of so many items and users.

    Raises:
        OutputError: the folder exists or cannot be written.
    """
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    schema = reference_schema()
    sizes: dict[Owner, int] = {"user": users, "item": items}
    columns = {owner: _columns(schema, owner, rows, random) for owner, rows in sizes.items()}
    tables = {owner: FeatureTable(pa.table(made), f"{owner}_id") for owner, made in columns.items()}
    encoder = reference_encoder(schema, sizes)
    model = reference_model(encoder)
    costs = flops(model.gate.selection(schema.task_names), model.shape)
    ranker = freeze(model, encoder, tables, {"task_0": 1.0}, {"flops": costs})
    ranker = replace(ranker, body=onnx_body(ranker.graph, encoder))
    context = _columns(schema, "context", GOLDEN_ROWS, random)
    ids = {f"{owner}_id": random.integers(rows, size=GOLDEN_ROWS) for owner, rows in sizes.items()}
    bundle.write(ranker, ranker.complete(pa.table(context | ids)), folder)
    return ranker


def reference_schema() -> Schema:
    """Features of all three owners, and eight binary tasks."""
    features: list[dict[str, Any]] = []
    for owner, (categorical, dense) in FEATURES.items():
        names = [f"{owner}_category_{i}" for i in range(categorical)]
        if owner != "context":
            names[0] = f"{owner}_id"
        features += [{"name": name, "kind": "categorical", "owner": owner, "dim": DIM} for name in names]
        features += [{"name": f"{owner}_number_{i}", "kind": "numeric", "owner": owner} for i in range(dense)]
    tasks = [{"name": f"task_{i}", "kind": "binary"} for i in range(len(CHOICES))]
    return Schema.model_validate({"name": "reference", "features": features, "tasks": tasks})


def reference_encoder(schema: Schema, sizes: dict[Owner, int]) -> Encoder:
    """Vocabularies of integers from 0."""
    known = {f"{owner}_id": min(size, KNOWN) for owner, size in sizes.items()}
    spaces = {name: Vocabulary(pa.array(range(known.get(name, VALUES)), pa.int64())) for name in schema.tables}
    return Encoder(schema, spaces, {f.name: Scale(0.0, 1.0, 0.0, has_missing_indicator=False) for f in schema.numerics})


@torch.no_grad()
def reference_model(encoder: Encoder) -> MMoE:
    """Random weights and a gate whose choice is final."""
    schema = encoder.schema
    embeddings = Embeddings(schema, {name: space.size for name, space in encoder.id_spaces.items()})
    for table in embeddings.parameters():
        table.normal_()
    model = MMoE(MODEL, len(schema.tasks), embeddings, encoder.dense_size)
    assert model.norm.running_mean is not None
    assert model.norm.running_var is not None
    model.norm.running_mean.normal_(std=0.1)
    model.norm.running_var.uniform_(0.5, 1.5)
    shares = torch.rand(len(CHOICES)).tolist()
    chosen = {
        task: {first: share, second: 1.0 - share}
        for task, (first, second), share in zip(schema.task_names, CHOICES, shares, strict=True)
    }
    choose(model.gate, Selection(MODEL.experts, 2, chosen))
    return model.eval()


def _columns(schema: Schema, owner: Owner, rows: int, random: np.random.Generator) -> dict[str, Any]:
    """Values for an owner's features; the id numbers the rows."""
    columns: dict[str, Any] = {}
    for feature in schema.inputs:
        if feature.owner == owner:
            numbers = feature.kind == "numeric"
            columns[feature.column] = random.normal(size=rows) if numbers else random.integers(VALUES, size=rows)
    if owner != "context":
        columns[f"{owner}_id"] = np.arange(rows)
    return columns
