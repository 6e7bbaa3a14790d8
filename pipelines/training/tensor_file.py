"""Write a safetensors file of tensors of which each rank has a part, without ever holding a whole one.

https://github.com/huggingface/safetensors#format; that library writes tensors only that one process holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch import Tensor

DTYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types of tensors → their names in the file."""

BLOCK_ROWS = 65_536
"""Rows of a tensor that are processed at once."""

ALIGNMENT = 8
"""Multiple of bytes at which the tensors start."""


@dataclass(frozen=True)
class TensorBlocks:
    """A tensor whose rows the main rank can read in blocks.

    Attributes:
        shape: shape of the whole tensor.
        blocks: yields the rows in order on the main rank, and nothing on the others. All ranks must read to the end,
            and several tensors in the same order.
        dtype: type of the tensor.
    """

    shape: tuple[int, ...]
    blocks: Callable[[], Iterator[Tensor]]
    dtype: torch.dtype = torch.float32


def write_tensors(
    tensors: Mapping[str, Tensor | TensorBlocks], stream: BinaryIO | None, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name; with ``TensorBlocks``, all ranks must call this with the same names.

    Args:
        tensors: the tensors.
        stream: the file; None on the ranks that do not write.
        metadata: texts by name for the description of the file.

    Raises:
        OSError: the file cannot be written.
    """
    # Those of the largest numbers first, so that all are aligned.
    names = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    if stream is not None:
        stream.write(_header({name: tensors[name] for name in names}, metadata))
    for name in names:
        value = tensors[name]
        for block in value.blocks() if isinstance(value, TensorBlocks) else _blocks_of(value):
            if stream is not None:
                stream.write(block.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def _blocks_of(tensor: Tensor) -> Sequence[Tensor]:
    """Split a tensor by its first dimension, so that one on a GPU is not copied as a whole."""
    return torch.split(tensor, BLOCK_ROWS) if tensor.dim() else [tensor]


def _header(tensors: Mapping[str, Tensor | TensorBlocks], metadata: Mapping[str, str] | None) -> bytes:
    """Return the start of the file: the length of the description, and the description of the tensors."""
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    start = 0
    for name, value in tensors.items():
        stop = start + value.dtype.itemsize * math.prod(value.shape)
        entries[name] = {"dtype": DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
