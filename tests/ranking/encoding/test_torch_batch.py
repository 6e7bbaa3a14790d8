"""Encoded rows as tensors: the same numbers, without a copy."""

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
    """Each tensor, and the array that it is of."""
    bags = zip(tensors.bags, inputs.bags, strict=True)
    return [
        (tensors.ids, inputs.ids),
        (tensors.dense, inputs.dense),
        *(pair for one, other in bags for pair in ((one.values, other.values), (one.lengths, other.lengths))),
    ]


def test_they_are_the_numbers_of_the_arrays_and_of_their_types(inputs: EncodedBatch) -> None:
    tensors = TorchBatch.from_numpy(inputs)
    assert len(tensors) == len(inputs) == 30
    assert (tensors.ids.dtype, tensors.dense.dtype) == (torch.int64, torch.float32)
    for tensor, array in pairs(tensors, inputs):
        np.testing.assert_array_equal(tensor.numpy(), array, strict=True)


def test_here_they_share_the_arrays_memory(inputs: EncodedBatch) -> None:
    for tensor, array in pairs(TorchBatch.from_numpy(inputs), inputs):
        assert np.shares_memory(tensor.numpy(), array)


def test_they_lie_on_the_device_asked_for(inputs: EncodedBatch) -> None:
    tensors = TorchBatch.from_numpy(inputs, torch.device("meta"))
    for tensor, array in pairs(tensors, inputs):
        assert tensor.device.type == "meta"
        assert tensor.shape == array.shape


def test_no_rows_give_tensors_of_no_rows(inputs: EncodedBatch) -> None:
    nothing = inputs.take(np.empty(0, np.int64))
    assert len(TorchBatch.from_numpy(nothing)) == 0
    for tensor, array in pairs(TorchBatch.from_numpy(nothing), nothing):
        assert tensor.shape == array.shape
