"""Dense inputs of a model: the dense values of a row and the encoding of its numbers in bins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:  # Passed in, so that this module needs only PyTorch.
    from ranking.encoding.bins import Bins


class DenseInputs(nn.Module):
    """Append the encoding in bins to dense values, see ``ranking.encoding.bins``.

    Args:
        size: number of dense columns.
        bins: bins of these columns.

    Attributes:
        width: width of the result.
    """

    columns: Tensor
    starts: Tensor
    ends: Tensor

    def __init__(self, size: int, bins: Bins) -> None:
        super().__init__()
        self.width = size + len(bins)
        for name in ("columns", "starts", "ends"):
            self.register_buffer(name, torch.tensor(getattr(bins, name)), persistent=False)

    def forward(self, dense: Tensor) -> Tensor:
        """Return the dense values [rows, size], followed by their encoding in bins: [rows, width]."""
        if not len(self.columns):
            return dense
        encoded = (dense[:, self.columns] - self.starts) / (self.ends - self.starts)
        return torch.cat([dense, encoded.clamp(0.0, 1.0)], 1)
