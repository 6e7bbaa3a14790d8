"""Examples as the tensors that a step learns from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from pipelines.training.labeled_batch import DeviceBatch, LabeledBatch
from ranking.encoding.encoder_fitter import EncoderFitter

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


@pytest.fixture
def examples(shop: Shop) -> LabeledBatch:
    """Twenty rows, with something for a side tower."""
    shop.write(shop.table(20))
    (cleaned,) = shop.reader().scan()
    fitter = EncoderFitter(shop.schema)
    fitter.add(cleaned.rows)
    return LabeledBatch.from_table(cleaned.rows, fitter.encoder(), position_encoder=fitter.encoder())


def test_holds_what_the_examples_hold(examples: LabeledBatch) -> None:
    batch = DeviceBatch.from_labeled(examples)
    assert np.array_equal(batch.labels, examples.labels, equal_nan=True)
    assert np.array_equal(batch.weights, examples.weights)
    assert examples.position_inputs is not None
    assert batch.position_inputs is not None
    for found, inputs in ((batch.inputs, examples.inputs), (batch.position_inputs, examples.position_inputs)):
        assert np.array_equal(found.ids, inputs.ids)
        assert np.array_equal(found.dense, inputs.dense)
        assert [bag.values.tolist() for bag in found.bags] == [bag.values.tolist() for bag in inputs.bags]
        assert [bag.lengths.tolist() for bag in found.bags] == [bag.lengths.tolist() for bag in inputs.bags]


def test_has_the_types_that_models_and_losses_take(examples: LabeledBatch) -> None:
    batch = DeviceBatch.from_labeled(examples)
    assert {tensor.dtype for tensor in (batch.labels, batch.weights, batch.inputs.dense)} == {torch.float32}
    assert {tensor.dtype for bag in batch.inputs.bags for tensor in (bag.values, bag.lengths)} == {torch.int64}
    assert batch.inputs.ids.dtype == torch.int64


def test_shares_the_arrays_memory(examples: LabeledBatch) -> None:
    batch = DeviceBatch.from_labeled(examples)
    examples.labels[3, 0] = 7.0
    examples.inputs.dense[5, 0] = 8.0
    assert batch.labels[3, 0] == 7.0
    assert batch.inputs.dense[5, 0] == 8.0


def test_lies_on_the_device_that_trains(examples: LabeledBatch) -> None:
    batch = DeviceBatch.from_labeled(examples, torch.device("meta"))
    assert batch.position_inputs is not None
    tensors = [batch.labels, batch.weights]
    for inputs in (batch.inputs, batch.position_inputs):
        tensors += [inputs.ids, inputs.dense, *(tensor for bag in inputs.bags for tensor in (bag.values, bag.lengths))]
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_has_nothing_for_a_side_tower_that_nobody_trains(examples: LabeledBatch) -> None:
    assert DeviceBatch.from_labeled(replace(examples, position_inputs=None)).position_inputs is None
