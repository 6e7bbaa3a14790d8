"""Features of candidates that are known neither from the request nor by id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ranking.encoding.batch import Mask


@dataclass(frozen=True)
class MissingFeatures:
    """Missing features of candidates of one request.

    Attributes:
        features: names of all features, in schema order.
        shared_indices: indices in ``features`` of the features that the candidates share.
        item_indices: indices in ``features`` of the features of items.
        shared: whether each shared feature is missing [shared features].
        items: whether each item feature is missing [candidates, item features].
    """

    features: Sequence[str]
    shared_indices: Sequence[int]
    item_indices: Sequence[int]
    shared: Mask
    items: Mask

    @property
    def count(self) -> int:
        """Number of missing values over all candidates and features."""
        return int(self.shared.sum()) * len(self.items) + int(self.items.sum())

    def take(self, rows: npt.NDArray[np.int64]) -> MissingFeatures:
        """Select candidates by position, in the given order."""
        return replace(self, items=self.items.take(rows, 0))

    @staticmethod
    def concat(parts: Sequence[MissingFeatures]) -> MissingFeatures:
        """Join the candidates of all slices of one request."""
        return replace(parts[0], items=np.concatenate([part.items for part in parts]))

    def mask(self) -> Mask:
        """Return whether each feature of each candidate is missing [candidates, features]."""
        mask = np.empty((len(self.items), len(self.features)), np.bool_)
        mask[:, self.shared_indices] = self.shared
        mask[:, self.item_indices] = self.items
        return mask

    def positions(self) -> dict[str, npt.NDArray[np.int64]]:
        """Map each feature that some candidate lacks to the positions of these candidates."""
        mask = self.mask()
        return {self.features[i]: np.flatnonzero(mask[:, i]) for i in np.flatnonzero(mask.any(0)).tolist()}

    def patterns(self) -> tuple[list[list[str]], list[int]]:
        """Return the distinct sets of missing features, and the index of the set of each candidate."""
        if not self.items.any():
            shared = [self.features[index] for index in np.array(self.shared_indices, np.int64)[self.shared].tolist()]
            return [shared], [0] * len(self.items)
        width, cells = len(self.features), self.mask().tobytes()
        rows = [cells[start : start + width] for start in range(0, len(cells), width)]
        pattern_index = {pattern: i for i, pattern in enumerate(dict.fromkeys(rows))}
        names = [
            [name for name, missing in zip(self.features, pattern, strict=True) if missing] for pattern in pattern_index
        ]
        return names, [pattern_index[row] for row in rows]
