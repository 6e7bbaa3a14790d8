"""What it means that rows are encoded alike."""

from __future__ import annotations

import numpy as np

from ranking.encoding.batch import EncodedBatch

TYPES = {"ids": np.int64, "dense": np.float32, "missing": np.bool_}


def assert_same(found: EncodedBatch, expected: EncodedBatch) -> None:
    """Every number, its place and its type, which is the documented one."""
    for name, kind in TYPES.items():
        array = getattr(found, name)
        assert array.dtype == kind, name
        np.testing.assert_array_equal(array, getattr(expected, name), name, strict=True)
    assert len(found.bags) == len(expected.bags)
    for bag, other in zip(found.bags, expected.bags, strict=True):
        assert bag.values.dtype == bag.lengths.dtype == np.int64
        np.testing.assert_array_equal(bag.values, other.values, strict=True)
        np.testing.assert_array_equal(bag.lengths, other.lengths, strict=True)
