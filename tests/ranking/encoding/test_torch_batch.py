"""Conversion of encoded rows to tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch
from torch import Tensor

from ranking.encoding.batch import EncodedBatch
from ranking.encoding.torch_batch import TorchBatch
from ranking.frozen.ranker import FrozenRanker


@pytest.fixture
def inputs(hand_ranker: FrozenRanker, draw_rows: Callable[[int, int], pa.Table]) -> EncodedBatch:
    return hand_ranker.encoder.encode(hand_ranker.complete(draw_rows(30, 1)))


def pairs(tensors: TorchBatch, inputs: EncodedBatch) -> list[tuple[Tensor, npt.NDArray[Any]]]:
    """Return each tensor with its array."""
    bags = zip(tensors.bags, inputs.bags, strict=True)
    return [
        (tensors.ids, inputs.ids),
        (tensors.dense, inputs.dense),
        *(pair for one, other in bags for pair in ((one.values, other.values), (one.lengths, other.lengths))),
    ]


def test_from_numpy_keeps_values_and_types(inputs: EncodedBatch) -> None:
    tensors = TorchBatch.from_numpy(inputs)
    assert len(tensors) == len(inputs) == 30
    assert (tensors.ids.dtype, tensors.dense.dtype) == (torch.int64, torch.float32)
    for tensor, array in pairs(tensors, inputs):
        np.testing.assert_array_equal(tensor.numpy(), array, strict=True)


def test_from_numpy_without_device_shares_memory(inputs: EncodedBatch) -> None:
    for tensor, array in pairs(TorchBatch.from_numpy(inputs), inputs):
        assert np.shares_memory(tensor.numpy(), array)


def test_from_numpy_moves_tensors_to_the_device(inputs: EncodedBatch) -> None:
    tensors = TorchBatch.from_numpy(inputs, torch.device("meta"))
    for tensor, array in pairs(tensors, inputs):
        assert tensor.device.type == "meta"
        assert tensor.shape == array.shape


def test_from_numpy_of_no_rows_gives_empty_tensors(inputs: EncodedBatch) -> None:
    empty = inputs.take(np.empty(0, np.int64))
    assert len(TorchBatch.from_numpy(empty)) == 0
    for tensor, array in pairs(TorchBatch.from_numpy(empty), empty):
        assert tensor.shape == array.shape
