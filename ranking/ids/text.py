"""Text of the ids of an index, as in bundles of format 2, which have no hashes of 128 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import xxhash

from ranking.ids.hashes import HashArray, IdQuery

WORD_SIZE = 8
"""Number of bytes of text that are compared at once."""

MASKS = np.array([2 ** (8 * count) - 1 for count in range(WORD_SIZE + 1)], np.uint64)
"""Masks of the first 0 to 8 bytes of a word."""


class IdText:
    """Concatenated text of ids.

    Args:
        data: UTF-8, followed by ``WORD_SIZE`` bytes of padding [bytes] uint8.
        ends: end of each id's text, which is the start of the next one [ids + 1]; the first entry is 0.

    Raises:
        ValueError: the ends are not those of the data.
    """

    def __init__(self, data: npt.NDArray[np.uint8], ends: npt.NDArray[np.signedinteger[Any]]) -> None:
        if not len(ends) or ends[0] != 0 or ends[-1] != len(data) - WORD_SIZE or (ends[1:] < ends[:-1]).any():
            raise ValueError(f"ends.npy does not divide the {len(data)} bytes of text.npy into the text of ids")
        self._ends = ends
        # Overlapping words: one that starts at each byte.
        self._words: HashArray = np.ndarray(len(data) - WORD_SIZE + 1, "<u8", data, strides=(1,))

    @classmethod
    def from_texts(cls, texts: Sequence[bytes]) -> Self:
        """Return the text of a query."""
        ends = np.cumsum([0, *map(len, texts)])
        return cls(np.frombuffer(b"".join([*texts, bytes(WORD_SIZE)]), np.uint8), ends)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def query(self, texts: Sequence[bytes]) -> IdQuery:
        """Return the query of these texts, which are UTF-8."""
        keys = np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts))
        queried = IdText.from_texts(texts)
        return keys, lambda rows, positions: self.equals(rows, queried, positions)

    def equals(
        self, rows: npt.NDArray[np.int64], other: IdText, other_rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Compare the text of each of these rows [n] with that of the other's row [n]."""
        start, other_start = self._ends.take(rows), other._ends.take(other_rows)
        lengths = self._ends.take(rows + 1) - start
        equal: npt.NDArray[np.bool_] = lengths == other._ends.take(other_rows + 1) - other_start
        pending = np.flatnonzero(equal)
        start, other_start, lengths = start[pending], other_start[pending], lengths[pending]
        while len(pending):
            differs = (self._words[start] ^ other._words[other_start]) & MASKS.take(lengths, mode="clip")
            equal[pending] = differs == 0
            continues = (differs == 0) & (lengths > WORD_SIZE)
            pending = pending[continues]
            start, other_start = start[continues] + WORD_SIZE, other_start[continues] + WORD_SIZE
            lengths = lengths[continues] - WORD_SIZE
        return equal
