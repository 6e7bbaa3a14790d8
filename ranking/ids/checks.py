"""Checks of text ids: the low 64 bits of their hashes, which distinguish ids with equal keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ranking.ids.hashes import HashArray, IdQuery, hash_texts


class IdChecks:
    """Checks of the ids of an index.

    Args:
        checks: check of each row's id [rows] uint64.

    Attributes:
        checks: the same.
    """

    def __init__(self, checks: HashArray) -> None:
        self.checks = checks

    def __len__(self) -> int:
        return len(self.checks)

    def query(self, texts: Sequence[bytes]) -> IdQuery:
        """Return the query of these texts, which are UTF-8."""
        keys, checks = hash_texts(texts)

        def matches(rows: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
            equal: npt.NDArray[np.bool_] = self.checks.take(rows) == checks[positions]
            return equal

        return keys, matches
