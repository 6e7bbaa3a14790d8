"""Examples as tensors, on the device that trains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pipelines.training.examples import Examples
from ranking.tensors import InputTensors


@dataclass(frozen=True)
class Batch:
    """What one step learns from, or one check measures.

    Attributes:
        inputs: encoded features.
        labels: [rows, tasks] float32, NaN where masked.
        weights: how much each row counts in the losses [rows] float32.
        side: what the side tower reads; None where nobody trains one.
    """

    inputs: InputTensors
    labels: Tensor
    weights: Tensor
    side: InputTensors | None = None

    @classmethod
    def of(cls, examples: Examples, device: torch.device | None = None) -> Batch:
        """The examples on a device; here they share the arrays' memory."""
        return cls(
            InputTensors.of(examples.inputs, device),
            torch.from_numpy(examples.labels).to(device),
            torch.from_numpy(examples.weights).to(device),
            None if examples.side is None else InputTensors.of(examples.side, device),
        )
