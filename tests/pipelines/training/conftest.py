"""Untrained models for the tests of what changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pipelines.training.batch import Batch
from pipelines.training.building import build_model
from pipelines.training.examples import encode
from ranking.fitting import EncoderFitter
from ranking.model import Mixture

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


@pytest.fixture
def made(shop: Shop) -> tuple[Mixture, Batch]:
    """An untrained model of five experts of two layers, and a batch for it."""
    shop.write(shop.table(64))
    (batch,) = shop.reader().clean()
    fitter = EncoderFitter(shop.schema)
    fitter.add(batch.rows)
    encoder = fitter.encoder()
    model = build_model(shop.config(model={"experts": 5, "expert_layers": [6, 4]}), encoder)
    return model, Batch.of(encode(batch.rows, encoder))


@pytest.fixture
def make(made: tuple[Mixture, Batch], shop: Shop) -> Callable[[dict[str, Any]], Mixture]:
    """(settings of the gate) → an untrained model of five experts."""
    (batch,) = shop.reader().clean()
    fitter = EncoderFitter(shop.schema)
    fitter.add(batch.rows)
    encoder = fitter.encoder()

    def build(gate: dict[str, Any]) -> Mixture:
        torch.manual_seed(0)
        return build_model(shop.config(model={"experts": 5, "gate": gate}), encoder)

    return build
