"""Encoded rows as PyTorch tensors: the input of the dense model and of the frozen graph in PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ranking.encoding.batch import EncodedBatch


@dataclass(frozen=True)
class TorchRaggedIds:
    """``RaggedIds`` as tensors: ``values`` [sum of lengths] int64 and ``lengths`` [batch] int64."""

    values: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class TorchBatch:
    """``EncodedBatch`` as tensors, without ``missing``; ``dense`` may have any floating-point type."""

    ids: Tensor
    bags: tuple[TorchRaggedIds, ...]
    dense: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def from_numpy(cls, inputs: EncodedBatch, device: torch.device | None = None) -> TorchBatch:
        """Copy a batch to a device; without a device the tensors share the memory of the arrays."""

        def tensor(array: object) -> Tensor:
            return torch.as_tensor(array).to(device)

        bags = tuple(TorchRaggedIds(tensor(bag.values), tensor(bag.lengths)) for bag in inputs.bags)
        return cls(tensor(inputs.ids), bags, tensor(inputs.dense))
