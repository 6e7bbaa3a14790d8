"""Safetensors files that are written block by block."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load
from torch import Tensor

from pipelines.training.tensor_file import DTYPES, TensorBlocks, write_tensors


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    value = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 9))))
    return value.to(draw(st.sampled_from(list(DTYPES))))


def in_blocks(value: Tensor) -> TensorBlocks:
    return TensorBlocks(tuple(value.shape), lambda: iter(value.split(2)), value.dtype)


@given(st.dictionaries(st.text(max_size=4), tensors(), max_size=5), st.booleans())
def test_library_reads_what_was_written(values: dict[str, Tensor], whole: bool) -> None:
    stream = io.BytesIO()
    write_tensors({n: v if whole or not v.dim() else in_blocks(v) for n, v in values.items()}, stream)
    read = load(stream.getvalue())
    assert read.keys() == values.keys()
    assert all(read[name].dtype == value.dtype and torch.equal(read[name], value) for name, value in values.items())


def test_tensors_that_are_not_contiguous_are_written_in_order() -> None:
    stream, value = io.BytesIO(), torch.arange(6.0).reshape(2, 3).T
    write_tensors({"whole": value, "blocks": in_blocks(value)}, stream)
    assert all(torch.equal(read, value) for read in load(stream.getvalue()).values())


def test_rank_without_a_file_reads_the_blocks_that_it_sends() -> None:
    sent: list[Any] = []

    def send() -> Any:
        sent.append(1)
        yield from ()

    write_tensors({"table": TensorBlocks((2, 3), send), "dense": torch.zeros(2)}, None)
    assert sent == [1]


def test_full_disk_raises_os_error() -> None:
    with Path("/dev/full").open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space left"):
        write_tensors({"dense": torch.zeros(2)}, stream)
