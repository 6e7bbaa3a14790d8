"""Encoded rows, as arrays: what ``encoding`` makes of columns, and what everything that scores reads."""

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
    """Lists of embedding rows: ``values`` [sum of lengths] int64 and ``lengths`` [batch] int64."""

    values: Int64
    lengths: Int64

    def take(self, rows: Int64) -> RaggedIds:
        """The lists at these positions [rows], in their order."""
        starts = np.cumsum(self.lengths) - self.lengths
        return RaggedIds(
            self.values.take(ragged_arange(starts.take(rows), lengths := self.lengths.take(rows))), lengths
        )

    @staticmethod
    def concat(parts: Sequence[RaggedIds]) -> RaggedIds:
        """The lists of all parts, one part after the other."""
        return RaggedIds(
            np.concatenate([part.values for part in parts]), np.concatenate([part.lengths for part in parts])
        )


def ragged_arange(starts: Int64, lengths: Int64) -> Int64:
    """Positions [sum of lengths] of spans, one after the other: so many from each start on."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


@dataclass(frozen=True)
class EncodedBatch:
    """Encoded rows.

    Attributes:
        ids: embedding rows [batch, features with one embedding], int64.
        bags: one for each feature with a list of ids.
        dense: numbers [batch, dense columns], float32, never NaN.
        missing: which features were null [batch, features with a column, in order of declaration], bool.
    """

    ids: Int64
    bags: tuple[RaggedIds, ...]
    dense: Float32
    missing: Mask

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: Int64) -> EncodedBatch:
        """The rows at these positions [rows], in their order."""
        bags = tuple(bag.take(rows) for bag in self.bags)
        return EncodedBatch(self.ids.take(rows, 0), bags, self.dense.take(rows, 0), self.missing.take(rows, 0))

    @staticmethod
    def concat(parts: Sequence[EncodedBatch]) -> EncodedBatch:
        """All rows of the parts, one part after the other."""
        bags = zip(*(part.bags for part in parts), strict=True)
        return EncodedBatch(
            np.concatenate([part.ids for part in parts]),
            tuple(map(RaggedIds.concat, bags)),
            np.concatenate([part.dense for part in parts]),
            np.concatenate([part.missing for part in parts]),
        )
