"""Checks of text ids: the low 64 bits of their hashes, which distinguish ids with equal keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ranking.lookup.id_hash import HashArray, hash_texts


class IdChecks:
    """Checks of the ids of an index.

    Args:
        checks: check of each row's id [rows] uint64.
    """

    def __init__(self, checks: HashArray) -> None:
        self._checks = checks

    def __len__(self) -> int:
        return len(self._checks)

    def query(self, texts: Sequence[bytes]) -> CheckQuery:
        """Return the query of these texts, which are UTF-8."""
        return CheckQuery(self._checks, texts)


class CheckQuery:
    """Text to look up in an index with checks.

    Args:
        checks: check of each row's id [rows] uint64.
        texts: UTF-8 of the ids to look up.

    Attributes:
        keys: hash key of each text [n].
    """

    def __init__(self, checks: HashArray, texts: Sequence[bytes]) -> None:
        self.keys, self._query_checks = hash_texts(texts)
        self._checks = checks

    def matches(self, rows: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return whether each of these rows [n], whose key is equal, has the id at the position [n] in the query."""
        equal: npt.NDArray[np.bool_] = self._checks.take(rows) == self._query_checks[positions]
        return equal
