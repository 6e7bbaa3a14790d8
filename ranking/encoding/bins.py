"""Piecewise-linear encoding of numbers in bins.

Gorishniy et al. 2022, "On embeddings for numerical features in tabular deep learning" (arXiv 2203.05556), section 3.2.
A bin is 0 below its start, 1 above its end, and increases linearly between them. A linear function of a number and its
bins is therefore any continuous function that is linear in each bin.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from ranking.encoding.batch import Float32, Int64


@dataclass(frozen=True)
class Bins:
    """Bins of the dense columns of encoded rows.

    Attributes:
        columns: dense column of each bin [bins] int64, ascending.
        starts: lower edge of each bin [bins] float32.
        ends: upper edge of each bin [bins] float32.
    """

    columns: Int64
    starts: Float32
    ends: Float32

    @classmethod
    def of(cls, edges: Mapping[int, Sequence[float]]) -> Self:
        """Create the bins between consecutive edges; ``edges`` are ascending, by dense column."""
        bins = [(column, *pair) for column in sorted(edges) for pair in itertools.pairwise(edges[column])]
        columns, starts, ends = zip(*bins, strict=True) if bins else ((), (), ())
        return cls(np.array(columns, np.int64), np.array(starts, np.float32), np.array(ends, np.float32))

    def __len__(self) -> int:
        return len(self.columns)

    def select(self, columns: Sequence[int]) -> Bins:
        """Return the bins of some dense columns, ascending, whose numbers then are their positions."""
        chosen = np.isin(self.columns, columns)
        return Bins(np.searchsorted(columns, self.columns[chosen]), self.starts[chosen], self.ends[chosen])

    def encode(self, dense: Float32) -> Float32:
        """Return the encoding [rows, bins] of dense values [rows, columns]."""
        return np.clip((dense[:, self.columns] - self.starts) / (self.ends - self.starts), 0.0, 1.0)
