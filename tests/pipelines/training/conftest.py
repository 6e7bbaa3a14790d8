"""Untrained models for the tests of what changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pipelines.training.labeled_batch import DeviceBatch, LabeledBatch
from pipelines.training.model_factory import build_model
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.model.mmoe import MMoE

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


@pytest.fixture
def made(shop: Shop) -> tuple[MMoE, DeviceBatch]:
    """An untrained model of five experts of two layers, and a batch for it."""
    shop.write(shop.table(64))
    (batch,) = shop.reader().scan()
    fitter = EncoderFitter(shop.schema)
    fitter.add(batch.rows)
    encoder = fitter.encoder()
    model = build_model(shop.config(model={"experts": 5, "expert_layers": [6, 4]}), encoder)
    return model, DeviceBatch.from_labeled(LabeledBatch.from_table(batch.rows, encoder))


@pytest.fixture
def make(made: tuple[MMoE, DeviceBatch], shop: Shop) -> Callable[[dict[str, Any]], MMoE]:
    """(settings of the gate) → an untrained model of five experts."""
    (batch,) = shop.reader().scan()
    fitter = EncoderFitter(shop.schema)
    fitter.add(batch.rows)
    encoder = fitter.encoder()

    def build(gate: dict[str, Any]) -> MMoE:
        torch.manual_seed(0)
        return build_model(shop.config(model={"experts": 5, "gate": gate}), encoder)

    return build
