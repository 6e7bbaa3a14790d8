"""Encoded rows as NumPy arrays: the output of the encoder and the input of all models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RaggedIds:
    """Lists of embedding rows.

    Attributes:
        values: embedding rows of all lists [sum of lengths] int64.
        lengths: length of each list [batch] int64.
    """

    values: Int64
    lengths: Int64

    def take(self, rows: Int64) -> RaggedIds:
        """Return the lists at these positions [rows], in that order."""
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = self.lengths.take(rows)
        return RaggedIds(self.values.take(ragged_arange(starts.take(rows), lengths)), lengths)

    @staticmethod
    def concat(parts: Sequence[RaggedIds]) -> RaggedIds:
        """Concatenate the lists of all parts."""
        return RaggedIds(
            np.concatenate([part.values for part in parts]), np.concatenate([part.lengths for part in parts])
        )


def ragged_arange(starts: Int64, lengths: Int64) -> Int64:
    """Concatenate the ranges [start, start + length) [sum of lengths] int64."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


@dataclass(frozen=True)
class EncodedBatch:
    """Encoded rows.

    Attributes:
        ids: embedding rows [batch, features with one embedding], int64.
        bags: lists of embedding rows, one for each feature with a list of ids.
        dense: numbers [batch, dense columns], float32, never NaN.
        missing: whether each feature was null [batch, features with a column, in order of declaration], bool.
    """

    ids: Int64
    bags: tuple[RaggedIds, ...]
    dense: Float32
    missing: Mask

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Int64) -> EncodedBatch:
        """Return the rows at these positions [rows], in that order."""
        bags = tuple(bag.take(rows) for bag in self.bags)
        return EncodedBatch(self.ids.take(rows, 0), bags, self.dense.take(rows, 0), self.missing.take(rows, 0))

    @staticmethod
    def concat(parts: Sequence[EncodedBatch]) -> EncodedBatch:
        """Concatenate the rows of all parts."""
        bags = zip(*(part.bags for part in parts), strict=True)
        return EncodedBatch(
            np.concatenate([part.ids for part in parts]),
            tuple(map(RaggedIds.concat, bags)),
            np.concatenate([part.dense for part in parts]),
            np.concatenate([part.missing for part in parts]),
        )
