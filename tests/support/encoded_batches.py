"""Comparison of encoded batches."""

from __future__ import annotations

import numpy as np

from ranking.encoding.batch import EncodedBatch

DTYPES = {"ids": np.int64, "dense": np.float32, "missing": np.bool_}


def assert_equal_batches(actual: EncodedBatch, expected: EncodedBatch) -> None:
    """Assert that all values, shapes and types are equal, and that the types are the documented ones."""
    for name, dtype in DTYPES.items():
        array = getattr(actual, name)
        assert array.dtype == dtype, name
        np.testing.assert_array_equal(array, getattr(expected, name), name, strict=True)
    assert len(actual.bags) == len(expected.bags)
    for bag, other in zip(actual.bags, expected.bags, strict=True):
        assert bag.values.dtype == bag.lengths.dtype == np.int64
        np.testing.assert_array_equal(bag.values, other.values, strict=True)
        np.testing.assert_array_equal(bag.lengths, other.lengths, strict=True)
