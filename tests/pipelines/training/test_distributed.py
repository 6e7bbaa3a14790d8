"""The process group of a training and its warnings."""

from __future__ import annotations

import warnings

import pytest

from pipelines.training.distributed import init_distributed


def test_init_distributed_ignores_warnings_without_a_use() -> None:
    with init_distributed():
        warnings.warn("TBE B200 optimization: device_major=9, feature_enabled=0, segment_length=1024", stacklevel=1)
        warnings.warn("Grad strides do not match bucket view strides.", stacklevel=1)
        with pytest.warns(UserWarning, match="another"):
            warnings.warn("another", stacklevel=1)
    with pytest.warns(UserWarning, match="TBE"):
        warnings.warn("TBE B200 optimization", stacklevel=1)
