"""Encoded rows as tensors: what a model trains on, and what the graph in PyTorch reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ranking.encoding.batch import EncodedBatch


@dataclass(frozen=True)
class TorchRaggedIds:
    """``inputs.Bag``: ``values`` [sum of lengths] int64 and ``lengths`` [batch] int64."""

    values: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class TorchBatch:
    """``inputs.Inputs``, without what was missing: ``ids`` int64, ``bags``, and ``dense`` of any floating type."""

    ids: Tensor
    bags: tuple[TorchRaggedIds, ...]
    dense: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def from_numpy(cls, inputs: EncodedBatch, device: torch.device | None = None) -> TorchBatch:
        """The rows on a device; here they share the arrays' memory."""

        def tensor(array: object) -> Tensor:
            return torch.as_tensor(array).to(device)

        bags = tuple(TorchRaggedIds(tensor(bag.values), tensor(bag.lengths)) for bag in inputs.bags)
        return cls(tensor(inputs.ids), bags, tensor(inputs.dense))
