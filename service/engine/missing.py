"""Which features candidates lack: known neither from the request nor by id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ranking.encoding.batch import Mask


@dataclass(frozen=True)
class Missing:
    """Of some candidates of one request.

    Attributes:
        features: names, in order of declaration.
        shared_places: which of them the candidates share.
        item_places: which of them each candidate has its own.
        shared: whether it is lacking, of each shared one [shared features].
        items: of each other one [candidates, other features].
    """

    features: Sequence[str]
    shared_places: Sequence[int]
    item_places: Sequence[int]
    shared: Mask
    items: Mask

    @property
    def count(self) -> int:
        """Over all candidates and features."""
        return int(self.shared.sum()) * len(self.items) + int(self.items.sum())

    def take(self, rows: npt.NDArray[np.int64]) -> Missing:
        """Of these candidates, in their order."""
        return Missing(self.features, self.shared_places, self.item_places, self.shared, self.items.take(rows, 0))

    @staticmethod
    def concat(parts: Sequence[Missing]) -> Missing:
        """Of all parts of one request's candidates."""
        return replace(parts[0], items=np.concatenate([part.items for part in parts]))

    def mask(self) -> Mask:
        """Both halves side by side [candidates, features]."""
        whole = np.empty((len(self.items), len(self.features)), np.bool_)
        whole[:, self.shared_places] = self.shared
        whole[:, self.item_places] = self.items
        return whole

    def positions(self) -> dict[str, npt.NDArray[np.int64]]:
        """Of each feature that some candidate lacks, the positions of those that do."""
        mask = self.mask()
        return {self.features[i]: np.flatnonzero(mask[:, i]) for i in np.flatnonzero(mask.any(0)).tolist()}

    def patterns(self) -> tuple[list[list[str]], list[int]]:
        """Sets of features that some candidate lacks, as names, and which set each candidate lacks."""
        if not self.items.any():
            shared = [self.features[place] for place in np.array(self.shared_places, np.int64)[self.shared].tolist()]
            return [shared], [0] * len(self.items)
        width, cells = len(self.features), self.mask().tobytes()
        each = [cells[start : start + width] for start in range(0, len(cells), width)]
        number = {pattern: i for i, pattern in enumerate(dict.fromkeys(each))}
        names = [[name for name, gone in zip(self.features, pattern, strict=True) if gone] for pattern in number]
        return names, [number[pattern] for pattern in each]
