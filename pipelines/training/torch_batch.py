"""Examples as tensors, on the device that trains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.training.labeled_batch import LabeledBatch
from ranking.encoding.torch_batch import TorchBatch


@dataclass(frozen=True)
class DeviceBatch:
    """What one step learns from, or one check measures.

    Attributes:
        inputs: encoded features.
        labels: [rows, tasks] float32, NaN where masked.
        weights: how much each row counts in the losses [rows] float32.
        side: what the side tower reads; None where nobody trains one.
    """

    inputs: TorchBatch
    labels: Tensor
    weights: Tensor
    side: TorchBatch | None = None

    @classmethod
    def from_labeled(cls, examples: LabeledBatch, device: torch.device | None = None) -> DeviceBatch:
        """The examples on a device; here they share the arrays' memory."""
        return cls(
            TorchBatch.from_numpy(examples.inputs, device),
            torch.from_numpy(examples.labels).to(device),
            torch.from_numpy(examples.weights).to(device),
            None if examples.side is None else TorchBatch.from_numpy(examples.side, device),
        )
