"""The reference model of docs/benchmarks.md: a bundle of realistic size with random weights.

500 inputs (30 categorical features with embeddings of 16 numbers, 20 numeric ones), 8 experts of 256-256, 8 tasks with
towers of 64 units. Each task selects 2 experts, and all tasks together select 4. The values of the weights do not
affect the cost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from ranking.artifacts import bundle
from ranking.encoding.encoder import Encoder, Scale
from ranking.encoding.feature_table import FeatureTable
from ranking.encoding.vocabulary import Vocabulary
from ranking.frozen.freeze import freeze
from ranking.frozen.ranker import FrozenRanker
from ranking.gates import DSelectK, Gate
from ranking.model.dense_inputs import DenseInputs
from ranking.model.embeddings import Embeddings
from ranking.model.mmoe import MMoE
from ranking.schema import Owner, Schema
from ranking.selection import Selection, flops
from ranking.settings.gate import DSelectKConfig
from ranking.settings.model import ModelConfig

FEATURES: dict[Owner, tuple[int, int]] = {"user": (10, 7), "context": (5, 3), "item": (15, 10)}
"""Owner → number of categorical features (including the ids of users and items) and of numeric features."""
DIM = 16
SELECTED_EXPERTS = ((1, 3), (4, 6), (1, 4), (3, 6), (1, 6), (3, 4), (1, 3), (4, 6))
"""Experts that each task selects."""
MODEL = ModelConfig(experts=8, expert_layers=(256, 256), tower_layers=(64,), gate=DSelectKConfig(k=2))
CATEGORIES = 1_000
"""Number of values of a categorical feature."""
MAX_VOCABULARY = 100_000
"""Maximum number of users, and of items, with their own embedding."""
GOLDEN_ROWS = 32


def write_reference(folder: Path, items: int, users: int, seed: int = 0) -> FrozenRanker:
    """Write the reference bundle with feature tables of the given numbers of items and users.

    Raises:
        OutputError: the folder exists or cannot be written.
    """
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    schema = reference_schema()
    sizes: dict[Owner, int] = {"user": users, "item": items}
    columns = {owner: _random_columns(schema, owner, rows, random) for owner, rows in sizes.items()}
    tables = {owner: FeatureTable(pa.table(values), f"{owner}_id") for owner, values in columns.items()}
    encoder = reference_encoder(schema, sizes)
    model = reference_model(encoder)
    costs = flops(model.selection(schema.task_names), model.shape)
    ranker = freeze(model, encoder, tables, {"task_0": 1.0}, {"flops": costs})
    context = _random_columns(schema, "context", GOLDEN_ROWS, random)
    ids = {f"{owner}_id": random.integers(rows, size=GOLDEN_ROWS) for owner, rows in sizes.items()}
    bundle.write_bundle(ranker, ranker.complete(pa.table(context | ids)), folder)
    return ranker


def reference_schema() -> Schema:
    """Return a schema with features of all three owners and eight binary tasks."""
    features: list[dict[str, Any]] = []
    for owner, (categorical, numeric) in FEATURES.items():
        names = [f"{owner}_category_{i}" for i in range(categorical)]
        if owner != "context":
            names[0] = f"{owner}_id"
        features += [{"name": name, "kind": "categorical", "owner": owner, "dim": DIM} for name in names]
        features += [{"name": f"{owner}_number_{i}", "kind": "numeric", "owner": owner} for i in range(numeric)]
    tasks = [{"name": f"task_{i}", "kind": "binary"} for i in range(len(SELECTED_EXPERTS))]
    return Schema.model_validate({"name": "reference", "features": features, "tasks": tasks})


def reference_encoder(schema: Schema, sizes: dict[Owner, int]) -> Encoder:
    """Return an encoder whose vocabularies are the integers from 0."""
    vocabulary_sizes = {f"{owner}_id": min(size, MAX_VOCABULARY) for owner, size in sizes.items()}
    vocabularies = {
        name: Vocabulary(pa.array(range(vocabulary_sizes.get(name, CATEGORIES)), pa.int64())) for name in schema.tables
    }
    scales = {feature.name: Scale(0.0, 1.0, 0.0, has_missing_indicator=False) for feature in schema.numerics}
    return Encoder(schema, vocabularies, scales)


@torch.no_grad()
def reference_model(encoder: Encoder) -> MMoE:
    """Return a model with random weights and a converged gate."""
    schema = encoder.schema
    embeddings = Embeddings(schema, {name: mapping.size for name, mapping in encoder.id_mappings.items()})
    for table in embeddings.parameters():
        table.normal_()
    model = MMoE(MODEL, len(schema.tasks), embeddings, DenseInputs(encoder.dense_size, encoder.bins))
    assert model.norm.running_mean is not None
    assert model.norm.running_var is not None
    model.norm.running_mean.normal_(std=0.1)
    model.norm.running_var.uniform_(0.5, 1.5)
    weights = torch.rand(len(SELECTED_EXPERTS)).tolist()
    tasks = {
        task: {first: weight, second: 1.0 - weight}
        for task, (first, second), weight in zip(schema.task_names, SELECTED_EXPERTS, weights, strict=True)
    }
    set_selection(model.gate, Selection(MODEL.experts, 2, tasks))
    return model.eval()


@torch.no_grad()
def set_selection(gate: Gate, selection: Selection) -> None:
    """Set the parameters of a static DSelect-k gate so that it has converged to a selection.

    Raises:
        ValueError: the gate is not a static DSelect-k gate.
    """
    if not isinstance(gate, DSelectK) or gate.per_example:
        raise ValueError("a selection can only be set for a static DSelect-k gate")
    for t, weights in enumerate(selection.tasks.values()):
        experts = list(weights)
        unused = gate.k - len(experts)
        codes = torch.tensor([*experts, *experts[:1] * unused])
        gate.z[t] = torch.where(gate.bits[codes], gate.gamma, -gate.gamma)
        gate.alpha[t] = torch.tensor([*weights.values(), *[0.0] * unused]).log()


def _random_columns(schema: Schema, owner: Owner, rows: int, random: np.random.Generator) -> dict[str, Any]:
    """Return random values of an owner's features; the id is the row number."""
    columns: dict[str, Any] = {}
    for feature in schema.inputs:
        if feature.owner == owner:
            is_numeric = feature.kind == "numeric"
            columns[feature.column] = random.normal(size=rows) if is_numeric else random.integers(CATEGORIES, size=rows)
    if owner != "context":
        columns[f"{owner}_id"] = np.arange(rows)
    return columns
