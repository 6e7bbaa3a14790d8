"""Piecewise-linear encoding: any function that is linear between the edges is a linear function of number and bins."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranking.encoding.bins import Bins
from ranking.model.dense_inputs import DenseInputs

NUMBERS = st.floats(-10, 10, width=32)


def test_bin_is_0_below_its_start_1_above_its_end_and_linear_between() -> None:
    bins = Bins.of({1: (0.0, 1.0, 3.0)})
    numbers = np.array([-5.0, 0.0, 0.25, 1.0, 2.0, 3.0, 9.0], np.float32)
    encoded = bins.encode(np.stack([numbers * 0, numbers], 1))
    assert encoded[:, 0].tolist() == [0.0, 0.0, 0.25, 1.0, 1.0, 1.0, 1.0]
    assert encoded[:, 1].tolist() == [0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 1.0]


def test_bins_are_in_order_of_columns_and_edges() -> None:
    bins = Bins.of({3: (0.0, 1.0), 0: (5.0, 6.0, 8.0), 1: ()})
    assert bins.columns.tolist() == [0, 0, 3]
    assert bins.starts.tolist() == [5.0, 6.0, 0.0]
    assert bins.ends.tolist() == [6.0, 8.0, 1.0]
    assert len(bins) == 3


def test_select_keeps_the_bins_of_columns_and_renumbers_them() -> None:
    bins = Bins.of({3: (0.0, 1.0), 0: (5.0, 6.0, 8.0), 1: (2.0, 3.0)}).select([0, 2, 3])
    assert bins.columns.tolist() == [0, 0, 2]
    assert bins.starts.tolist() == [5.0, 6.0, 0.0]
    assert bins.ends.tolist() == [6.0, 8.0, 1.0]
    assert len(bins.select([])) == 0


def test_bins_without_edges_encode_nothing() -> None:
    bins = Bins.of({0: ()})
    assert bins.encode(np.ones((2, 1), np.float32)).shape == (2, 0)
    dense = torch.ones(2, 1)
    assert DenseInputs(1, bins)(dense) is dense


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6, unique=True).map(sorted), st.data())
def test_values_at_the_edges_determine_a_linear_function_of_the_bins(edges: list[int], data: st.DataObject) -> None:
    heights = np.array(data.draw(st.lists(NUMBERS, min_size=len(edges), max_size=len(edges))))
    numbers = np.array(data.draw(st.lists(st.floats(edges[0], edges[-1], width=32), min_size=1)), np.float32)
    encoded = Bins.of({0: edges}).encode(numbers[:, None]).astype(np.float64)
    expected = np.interp(numbers, edges, heights)
    np.testing.assert_allclose(heights[0] + encoded @ np.diff(heights), expected, rtol=1e-4, atol=1e-3)


@given(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=5))
def test_dense_inputs_equal_the_encoding_in_numpy(rows: list[list[float]]) -> None:
    bins = Bins.of({0: (-1.0, 0.5, 2.0), 2: (0.0, 1e-3)})
    dense = np.array(rows, np.float32)
    module = DenseInputs(3, bins)
    result = module(torch.from_numpy(dense))
    assert module.width == result.shape[1] == 6
    np.testing.assert_array_equal(result.numpy(), np.concatenate([dense, bins.encode(dense)], 1))
    assert not module.state_dict(), "the edges are part of the encoder, not of the weights"
