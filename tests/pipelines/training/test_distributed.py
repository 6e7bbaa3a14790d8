"""The process group of a training and its warnings."""

from __future__ import annotations

import warnings

import pytest
import torch

from pipelines.training.distributed import _is_lost_peer, init_distributed
from ranking.errors import RankerError


def test_init_distributed_ignores_warnings_without_a_use() -> None:
    with init_distributed():
        warnings.warn("TBE B200 optimization: device_major=9, feature_enabled=0, segment_length=1024", stacklevel=1)
        warnings.warn("Grad strides do not match bucket view strides.", stacklevel=1)
        with pytest.warns(UserWarning, match="another"):
            warnings.warn("another", stacklevel=1)
    with pytest.warns(UserWarning, match="TBE"):
        warnings.warn("TBE B200 optimization", stacklevel=1)


def test_init_distributed_with_more_ranks_than_gpus_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RankerError, match="rank 0: each rank needs a GPU, and this machine has 1:"), init_distributed():
        pass


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:2345"), True),
        (RuntimeError("NCCL error: remote process exited or there was a network error"), True),
        (RuntimeError("ProcessGroupGloo::allgather: invalid tensor size at index 0 (expected (19, 4))"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("connection"), False),
    ],
)
def test_is_lost_peer_is_false_for_defects(error: Exception, expected: bool) -> None:
    assert _is_lost_peer(error) == expected
