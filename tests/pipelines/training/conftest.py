"""Untrained models and batches for tests of the parts of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pipelines.training.labeled_batch import DeviceBatch, LabeledBatch
from ranking.encoding.encoder import Encoder
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.model.mmoe import MMoE
from tests.support.plain_model import build_plain_model

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

MakeModel = Callable[[dict[str, Any]], MMoE]


@pytest.fixture
def labeled_batch(shop: Shop) -> tuple[Encoder, LabeledBatch]:
    """An encoder fitted on a log of 64 rows, and the batch of these rows."""
    shop.write(shop.table(64))
    (chunk,) = shop.reader().scan()
    fitter = EncoderFitter(shop.schema)
    fitter.add(chunk.rows)
    encoder = fitter.encoder()
    return encoder, LabeledBatch.from_table(chunk.rows, encoder)


@pytest.fixture
def model_and_batch(
    request: pytest.FixtureRequest, shop: Shop, labeled_batch: tuple[Encoder, LabeledBatch]
) -> tuple[MMoE, DeviceBatch]:
    """An untrained model of five experts with two layers each, and a batch for it; the parameter is a reading."""
    encoder, batch = labeled_batch
    reading = getattr(request, "param", "sum")
    model = build_plain_model(shop.config(model={"experts": 5, "expert_layers": [6, 4], "reading": reading}), encoder)
    return model, DeviceBatch.from_labeled(batch)


@pytest.fixture
def make_model(shop: Shop, labeled_batch: tuple[Encoder, LabeledBatch]) -> MakeModel:
    """Factory: settings of a gate → an untrained model of five experts."""
    encoder, _ = labeled_batch

    def build(gate: dict[str, Any]) -> MMoE:
        torch.manual_seed(0)
        return build_plain_model(shop.config(model={"experts": 5, "gate": gate}), encoder)

    return build
