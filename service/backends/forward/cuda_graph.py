"""A computation on buffers that stay where they are, recorded once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

SMALLEST = 16
"""Rows of the smallest bucket; the next are twice as large each."""
WARM_UPS = 3
"""Runs before a graph is recorded, in which libraries choose their kernels and take their memory."""


def bucket(count: int) -> int:
    """Rows of the bucket that holds so many."""
    return max(SMALLEST, 1 << max(count - 1, 0).bit_length())


class CudaGraphRunner:
    """Copies buffers to the device and computes there: on a GPU one launch instead of a hundred.

    On another device than a GPU the same is computed without recording.

    Args:
        compute: reads the buffers on the device; outputs there, always of one shape.
        buffers: those that the caller fills, best in pinned memory, each with its copy on the device.
        device: where.
    """

    def __init__(
        self, compute: Callable[[], Tensor], buffers: Sequence[tuple[Tensor, Tensor]], device: torch.device
    ) -> None:
        self._compute, self._buffers = compute, buffers
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
                for _ in range(WARM_UPS):
                    compute()
            torch.cuda.synchronize(device)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._outputs = compute()

    def run(self) -> Tensor:
        """Outputs on the device; the next run writes over them."""
        for here, there in self._buffers:
            there.copy_(here, non_blocking=True)
        if self._graph is None:
            return self._compute()
        self._graph.replay()
        return self._outputs
