"""Fixtures of a hand-made ranker: every kind of feature, five experts with two layers, gates with a known selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
import torch

from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.feature_table import FeatureTable, fill_features
from ranking.frozen.freeze import freeze
from ranking.frozen.ranker import FrozenRanker
from ranking.gates import DSelectK
from ranking.model.dense_inputs import DenseInputs
from ranking.model.embeddings import Embeddings
from ranking.model.mmoe import MMoE
from ranking.schema import Owner, Schema
from ranking.selection import Reading
from ranking.settings.gate import DSelectKConfig, GateConfig
from ranking.settings.model import ModelConfig

__all__ = ["draw_rows", "hand_encoder", "hand_ranker", "hand_schema", "hand_tables"]
__all__ += ["make_mmoe", "make_model", "mean_ranker", "ranker_of", "set_codes"]

USERS, ITEMS = 20, 30

OF_ITEMS = {"owner": "user", "dim": 4, "min_count": 2, "table": "item_id", "pooling": "sum"}
DAY_PART: dict[str, Any] = {"name": "day_part", "column": "hour", "kind": "buckets", "owner": "context", "dim": 2}
DAY_PART |= {"boundaries": [6, 12, 18], "default": 12}

HAND: dict[str, Any] = {
    "name": "hand",
    "features": [
        {"name": "user_id", "kind": "categorical", "owner": "user", "dim": 4},
        {"name": "item_id", "kind": "categorical", "owner": "item", "dim": 4, "min_count": 2},
        {"name": "country", "kind": "categorical", "owner": "user", "dim": 3, "hash_buckets": 7},
        {"name": "tab", "kind": "categorical", "owner": "context", "dim": 2},
        {"name": "genres", "kind": "bag", "owner": "item", "dim": 4},
        {"name": "liked", "kind": "bag", **OF_ITEMS},
        {"name": "words", "kind": "bag", "owner": "item", "dim": 3, "hash_buckets": 11, "pooling": "sum"},
        {"name": "recent", "kind": "sequence", "max_length": 2, **OF_ITEMS, "pooling": "shrunk"},
        {"name": "country_tab", "kind": "cross", "of": ["country", "tab"], "hash_buckets": 13, "dim": 3},
        {"name": "age_band", "column": "age", "kind": "buckets", "owner": "user", "dim": 3, "count": 4},
        DAY_PART,
        {"name": "age", "kind": "numeric", "owner": "user"},
        {"name": "price", "kind": "numeric", "owner": "item", "transform": "log1p"},
        {"name": "hour", "kind": "numeric", "owner": "context", "transform": "none"},
    ],
    "tasks": [
        {"name": "click", "kind": "binary"},
        {"name": "like", "kind": "binary"},
        {"name": "watch", "kind": "regression", "transform": "log1p"},
        {"name": "rating", "kind": "regression"},
    ],
}

HAND_CODES = [[0, 1], [6, 3], [2, 7], [3, 5]]
"""Codes of each task's selectors. With five experts, codes 5, 6 and 7 mean experts 0, 1 and 2; no task selects 4."""


@pytest.fixture(scope="session")
def hand_schema() -> Schema:
    return Schema.model_validate(HAND)


@pytest.fixture(scope="session")
def hand_tables() -> dict[Owner, FeatureTable]:
    """Features of 20 users and 30 items, some of them null."""
    random = np.random.default_rng(3)

    def with_nulls(values: Sequence[Any]) -> list[Any]:
        return [None if random.random() < 0.15 else value for value in values]

    def random_lists(pool: Sequence[Any], count: int) -> list[list[Any]]:
        return [[pool[i] for i in random.integers(len(pool), size=random.integers(0, 4))] for _ in range(count)]

    users = {
        "user_id": [f"u{i}" for i in range(USERS)],
        "country": with_nulls([f"C{i % 9}" for i in range(USERS)]),
        "liked": with_nulls(random_lists(range(ITEMS), USERS)),
        "recent": with_nulls(random_lists(range(ITEMS), USERS)),
        "age": with_nulls(random.integers(15, 80, USERS).astype(float).tolist()),
    }
    items = {
        "item_id": list(range(ITEMS)),
        "genres": with_nulls(random_lists(["drama", "news", "sport", "music"], ITEMS)),
        "words": with_nulls(random_lists([f"w{i}" for i in range(40)], ITEMS)),
        "price": with_nulls(random.lognormal(1.0, 1.0, ITEMS).tolist()),
    }
    return {"user": FeatureTable(pa.table(users), "user_id"), "item": FeatureTable(pa.table(items), "item_id")}


@pytest.fixture(scope="session")
def mean_ranker(ranker_of: Callable[[Reading], FrozenRanker]) -> FrozenRanker:
    """The mean of three models with the same inputs; each has its own reading and weights; read-only."""
    random, models = np.random.default_rng(11), []
    for reading in get_args(Reading):
        (model,) = ranker_of(reading).models
        weights = {
            name: (weight + random.normal(0, 0.2, weight.shape)).astype(np.float32)
            for name, weight in model.weights.items()
        }
        models.append(replace(model, weights=weights))
    return replace(ranker_of("sum"), models=tuple(models))


@pytest.fixture(scope="session")
def draw_rows() -> Callable[[int, int], pa.Table]:
    """Function (rows, seed) that draws log rows: ids (some unknown), context features and labels (some null)."""

    def draw(rows: int, seed: int) -> pa.Table:
        random = np.random.default_rng(seed)

        def label(values: np.ndarray[Any, Any]) -> pa.Array:
            return pa.array(values, mask=random.random(rows) < 0.1)

        return pa.table(
            {
                "user_id": [f"u{i}" for i in random.integers(USERS + 3, size=rows)],
                "item_id": random.integers(ITEMS + 3, size=rows),
                "tab": pa.array(random.choice(["home", "search"], rows), mask=random.random(rows) < 0.1),
                "hour": pa.array(random.integers(24, size=rows), mask=random.random(rows) < 0.1),
                "click": label(random.integers(2, size=rows)),
                "like": label(random.integers(2, size=rows)),
                "watch": label(random.exponential(10.0, rows)),
                "rating": label(random.normal(3.0, 1.0, rows)),
            }
        )

    return draw


@pytest.fixture(scope="session")
def hand_encoder(
    hand_schema: Schema, hand_tables: dict[Owner, FeatureTable], draw_rows: Callable[[int, int], pa.Table]
) -> Encoder:
    fitter = EncoderFitter(hand_schema)
    fitter.add(fill_features(draw_rows(300, 0), hand_schema, hand_tables))
    return fitter.encoder()


@pytest.fixture(scope="session")
def set_codes() -> Callable[[DSelectK, list[list[int]]], None]:
    """Function (gate, codes [tasks][k]) that sets a gate to these codes, so that it is converged."""

    def set_gate_codes(gate: DSelectK, codes: list[list[int]]) -> None:
        m = gate.z.shape[-1]
        bits = torch.tensor([[[(code >> j) & 1 for j in range(m)] for code in task] for task in codes])
        with torch.no_grad():
            gate.z.copy_((2.0 * bits - 1.0) * gate.gamma)

    return set_gate_codes


@pytest.fixture(scope="session")
def make_mmoe(hand_schema: Schema, hand_encoder: Encoder) -> Callable[..., MMoE]:
    """Function (gate, reading) that makes a new dense model, always the same: in eval mode, with a batch norm."""

    def make(gate: GateConfig, reading: Reading = "sum") -> MMoE:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            sizes = {name: mapping.size for name, mapping in hand_encoder.id_mappings.items()}
            embeddings = Embeddings(hand_schema, sizes)
            config = ModelConfig(experts=5, expert_layers=(12, 8), tower_layers=(6,), gate=gate, reading=reading)
            model = MMoE(
                config, len(hand_schema.tasks), embeddings, DenseInputs(hand_encoder.dense_size, hand_encoder.bins)
            )
            with torch.no_grad():
                for table in hand_schema.tables:
                    embeddings.weight(table).normal_()
                model.norm.weight.uniform_(0.5, 1.5)
                model.norm.bias.normal_()
                model.norm.running_mean.normal_()
                model.norm.running_var.uniform_(0.3, 3.0)
                for parameter in (*model.gate.parameters(), *model.reading.parameters()):
                    parameter.normal_()
        return model.eval()

    return make


@pytest.fixture(scope="session")
def make_model(
    make_mmoe: Callable[..., MMoE], set_codes: Callable[[DSelectK, list[list[int]]], None]
) -> Callable[..., MMoE]:
    """Function (reading) that makes a new dense model, always the same, converged to ``HAND_CODES``."""

    def make(reading: Reading = "sum") -> MMoE:
        model = make_mmoe(DSelectKConfig(k=2), reading)
        set_codes(model.gate, HAND_CODES)
        return model

    return make


@pytest.fixture(scope="session")
def ranker_of(
    make_model: Callable[..., MMoE], hand_encoder: Encoder, hand_tables: dict[Owner, FeatureTable]
) -> Callable[[Reading], FrozenRanker]:
    """Function (reading) that returns the frozen model; read-only."""

    @cache
    def make(reading: Reading) -> FrozenRanker:
        model = make_model(reading)
        return freeze(model, hand_encoder, hand_tables, {"click": 1.0, "like": 2.0}, {"made_by": "hand"})

    return make


@pytest.fixture(scope="session")
def hand_ranker(ranker_of: Callable[[Reading], FrozenRanker]) -> FrozenRanker:
    """The frozen model whose tasks read the sum of their experts; read-only."""
    return ranker_of("sum")
