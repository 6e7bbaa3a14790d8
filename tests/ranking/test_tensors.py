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

from ranking.frozen import FrozenRanker
from ranking.inputs import Inputs
from ranking.tensors import InputTensors


@pytest.fixture
def inputs(hand_ranker: FrozenRanker, draw_rows: Callable[[int, int], pa.Table]) -> Inputs:
    return hand_ranker.encoder.encode(hand_ranker.complete(draw_rows(30, 1)))


def pairs(tensors: InputTensors, inputs: Inputs) -> list[tuple[Tensor, npt.NDArray[Any]]]:
    """Each tensor, and the array that it is of."""
    bags = zip(tensors.bags, inputs.bags, strict=True)
    return [
        (tensors.ids, inputs.ids),
        (tensors.dense, inputs.dense),
        *(pair for one, other in bags for pair in ((one.values, other.values), (one.lengths, other.lengths))),
    ]


def test_they_are_the_numbers_of_the_arrays_and_of_their_types(inputs: Inputs) -> None:
    tensors = InputTensors.of(inputs)
    assert len(tensors) == len(inputs) == 30
    assert (tensors.ids.dtype, tensors.dense.dtype) == (torch.int64, torch.float32)
    for tensor, array in pairs(tensors, inputs):
        np.testing.assert_array_equal(tensor.numpy(), array, strict=True)


def test_here_they_share_the_arrays_memory(inputs: Inputs) -> None:
    for tensor, array in pairs(InputTensors.of(inputs), inputs):
        assert np.shares_memory(tensor.numpy(), array)


def test_they_lie_on_the_device_asked_for(inputs: Inputs) -> None:
    tensors = InputTensors.of(inputs, torch.device("meta"))
    for tensor, array in pairs(tensors, inputs):
        assert tensor.device.type == "meta"
        assert tensor.shape == array.shape


def test_no_rows_give_tensors_of_no_rows(inputs: Inputs) -> None:
    nothing = inputs.take(np.empty(0, np.int64))
    assert len(InputTensors.of(nothing)) == 0
    for tensor, array in pairs(InputTensors.of(nothing), nothing):
        assert tensor.shape == array.shape
