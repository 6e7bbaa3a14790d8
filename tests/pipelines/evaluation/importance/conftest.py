"""Fixtures: a log with a cross and a shared column, and models with chosen weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pipelines.config.config import EvaluationConfig
from pipelines.evaluation.sources import Scorer
from ranking.encoding.batch import EncodedBatch
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.frozen.calibration import Calibration
from ranking.schema import Schema
from tests.conftest import RAW_SCHEMA
from tests.pipelines.conftest import Shop

MakeScorer = Callable[..., Scorer]

CROSSED = [
    *RAW_SCHEMA["features"],
    {"name": "age_group", "column": "age", "kind": "buckets", "owner": "user", "boundaries": [30.0, 50.0]},
    {"name": "tab_item", "kind": "cross", "of": ["tab", "item_id"], "hash_buckets": 64},
]
"""The features of the shop with a second feature of one column and a cross."""


@pytest.fixture
def crossed_shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path / "shop")
    shop.schema = Schema.model_validate({**RAW_SCHEMA, "features": CROSSED})
    return shop


@pytest.fixture
def make_scorer() -> MakeScorer:
    """Return a function that makes a linear model of the numbers of a shop with chosen weights, for all tasks."""

    def make(shop: Shop, weights: Mapping[str, float] | None = None) -> Scorer:
        fitter = EncoderFitter(shop.schema)
        for chunk in shop.reader().scan():
            fitter.add(chunk.rows)
        factors = torch.tensor([(weights or {}).get(number.name, 0.0) for number in shop.schema.numerics])

        def forward(inputs: EncodedBatch) -> tuple[Tensor, Tensor]:
            outputs = torch.from_numpy(inputs.dense)[:, : len(factors)] @ factors
            return outputs[:, None].repeat(1, len(shop.schema.tasks)), torch.ones(len(shop.schema.tasks), 1)

        return Scorer(
            name="model",
            encoder=fitter.encoder(),
            tables={},
            forward=forward,
            calibration=Calibration(),
            num_experts=1,
            selection=None,
            trained_until=None,
            logs=None,
            settings=EvaluationConfig(),
        )

    return make
