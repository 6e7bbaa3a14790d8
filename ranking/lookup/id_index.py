"""Hash index from integer or text ids to row numbers, made of arrays that processes map and share.

Rows are sorted by a 64-bit hash key of their id. ``starts`` gives, for each value of a key's highest bits, the position
of the first key with these bits. A lookup reads memory twice: once in ``starts`` and once (rarely more) in ``keys``.
Binary search would need one read for each bit of the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from ranking.lookup.npy import ArrayWriter, ReadFile, map_file, open_array

NOT_FOUND = -1
"""Row of an id that is not in the index."""

CHUNK_SIZE = 65_536
"""Number of ids that are hashed or written at once."""

KeyArray = npt.NDArray[np.uint64]
RowArray = npt.NDArray[np.int64]

SENTINEL = np.uint64(2**64 - 1)
"""Key after those of all rows, which ends a search."""

WORD_SIZE = 8
"""Number of bytes of text that are compared at once."""

MASKS = np.array([2 ** (8 * count) - 1 for count in range(WORD_SIZE + 1)], np.uint64)
"""Masks of the first 0 to 8 bytes of a word."""


class IdText:
    """Concatenated text of the rows' ids.

    Args:
        data: UTF-8, followed by ``WORD_SIZE`` bytes of padding [bytes] uint8.
        ends: end of each row's text, which is the start of the next one [rows + 1]; the first entry is 0.
    """

    def __init__(self, data: npt.NDArray[np.uint8], ends: npt.NDArray[np.signedinteger[Any]]) -> None:
        self._ends = ends
        # Overlapping words: one that starts at each byte.
        self._words: KeyArray = np.ndarray(len(data) - WORD_SIZE + 1, "<u8", data, strides=(1,))

    @classmethod
    def from_ids(cls, ids: pa.Array) -> Self:
        """Return the text of an array of strings."""
        data, ends = _utf8(ids)
        return cls(np.append(data, np.zeros(WORD_SIZE, np.uint8)), ends)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def equals(self, rows: RowArray, other: IdText, other_rows: RowArray) -> npt.NDArray[np.bool_]:
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


class IdIndex:
    """Index from ids to rows.

    Args:
        keys: hash keys of the rows' ids, ascending, then ``SENTINEL`` [rows + 1].
        starts: number of keys below each value of the highest bits [power of two, ≥ rows] uint32.
        text: text of the rows' ids, which may have equal keys; None for integers, whose keys differ.
    """

    def __init__(self, keys: KeyArray, starts: npt.NDArray[np.uint32], text: IdText | None) -> None:
        self._keys = keys
        self._starts = starts
        self._text = text
        self._shift = np.uint64(65 - len(starts).bit_length())

    def __len__(self) -> int:
        return len(self._keys) - 1

    def rows(self, ids: pa.Array) -> RowArray:
        """Return the row of each id [n] int64, or ``NOT_FOUND``.

        Args:
            ids: ids of the index's type, int64 or string; a null is not found.
        """
        valid = None
        if ids.null_count:
            valid = ids.is_valid().to_numpy(zero_copy_only=False)
            ids = ids.fill_null(0 if self._text is None else "")
        rows = self._find(hash_ids(ids), None if self._text is None else IdText.from_ids(ids))
        return rows if valid is None else np.where(valid, rows, NOT_FOUND)

    def rows_from_values(self, ids: Sequence[Any] | RowArray) -> RowArray:
        """Return the same as ``rows`` for Python values or a NumPy array.

        Args:
            ids: ids of the index's type, 64-bit integers or text, without None.
        """
        if self._text is None:
            return self._find(_hash_integers(np.asarray(ids, np.int64)), None)
        texts = [str.encode(text) for text in ids]
        keys = np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts))
        ends = np.cumsum([0, *map(len, texts)])
        return self._find(keys, IdText(np.frombuffer(b"".join([*texts, bytes(WORD_SIZE)]), np.uint8), ends))

    def _find(self, keys: KeyArray, query: IdText | None) -> RowArray:
        rows = self._find_keys(keys)
        if self._text is not None and query is not None:
            self._resolve_collisions(rows, keys, self._text, query)
        return rows

    def _find_keys(self, keys: KeyArray) -> RowArray:
        """Return the first row with each key [n], or ``NOT_FOUND``."""
        rows = self._starts.take((keys >> self._shift).view(np.int64)).astype(np.int64)
        row_keys = self._keys.take(rows)
        pending = np.flatnonzero(row_keys < keys)
        pending_keys, positions = keys[pending], rows[pending]
        while len(pending):
            positions += 1
            rows[pending], row_keys[pending] = positions, self._keys.take(positions)
            continues = row_keys[pending] < pending_keys
            pending, pending_keys, positions = pending[continues], pending_keys[continues], positions[continues]
        return np.where((row_keys == keys) & (rows < len(self)), rows, NOT_FOUND)

    def _resolve_collisions(self, rows: RowArray, keys: KeyArray, text: IdText, query: IdText) -> None:
        """Advance each row [n] in place to the row with the same key and the query's text, or to ``NOT_FOUND``."""
        pending = np.flatnonzero(rows != NOT_FOUND)
        while len(pending):
            pending = pending[~text.equals(rows[pending], query, pending)]
            following = rows[pending] + 1
            has_same_key = (self._keys.take(following) == keys[pending]) & (following < len(self))
            rows[pending] = np.where(has_same_key, following, NOT_FOUND)
            pending = pending[has_same_key]

    @classmethod
    def open(cls, folder: Path, id_type: pa.DataType, read_file: ReadFile = map_file) -> Self:
        """Open an index that ``write_id_index`` wrote.

        Args:
            folder: folder of the index.
            id_type: type of the ids, int64 or string.
            read_file: returns the content of a file.

        Raises:
            OSError, ValueError: the files are not an index of this type.
        """
        keys = open_array(folder / "keys.npy", np.uint64, read_file)
        starts = open_array(folder / "starts.npy", np.uint32, read_file)
        if len(starts) != _bucket_count(len(keys) - 1):
            raise ValueError(f"starts.npy holds {len(starts)} rows, which is wrong for {len(keys)} keys")
        text = None
        if id_type == pa.string():
            data = open_array(folder / "text.npy", np.uint8, read_file)
            text = IdText(data, open_array(folder / "ends.npy", np.int64, read_file))
            if len(text) != len(keys) - 1:
                raise ValueError(f"ends.npy holds the text of {len(text)} ids, not {len(keys) - 1}")
        return cls(keys, starts, text)


def write_id_index(ids: pa.Array, folder: Path) -> RowArray:
    """Write the index of ids as ``keys.npy`` and ``starts.npy``, and for text also ``text.npy`` and ``ends.npy``.

    Args:
        ids: int64 or string, without nulls or duplicates.
        folder: an existing folder.

    Returns:
        Position in ``ids`` of the id of each row [rows].
    """
    keys = np.concatenate([hash_ids(ids.slice(0, 0)), *(hash_ids(chunk) for chunk in _chunks(ids))])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    np.save(folder / "keys.npy", np.append(keys, SENTINEL))
    buckets = _bucket_count(len(keys))
    counts = np.bincount((keys >> np.uint64(65 - buckets.bit_length())).view(np.int64), minlength=buckets)
    np.save(folder / "starts.npy", (np.cumsum(counts) - counts).astype(np.uint32))
    if ids.type == pa.string():
        _write_text(ids, order, folder)
    return order


def _write_text(ids: pa.Array, order: RowArray, folder: Path) -> None:
    with (
        ArrayWriter(folder / "text.npy", np.uint8) as text_file,
        ArrayWriter(folder / "ends.npy", np.int64) as ends_file,
    ):
        size = 0
        ends_file.append(np.zeros(1, np.int64))
        for rows in _chunks(pa.array(order)):
            text, ends = _utf8(ids.take(rows))
            text_file.append(text)
            ends_file.append(size + ends[1:].astype(np.int64))
            size += len(text)
        text_file.append(np.zeros(WORD_SIZE, np.uint8))


def _utf8(ids: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return the UTF-8 [bytes] of strings without nulls and the end of each string [n + 1], the first entry being 0."""
    _, offsets, data = ids.buffers()
    if not len(ids) or data is None:
        return np.empty(0, np.uint8), np.zeros(len(ids) + 1, np.int32)
    ends = np.frombuffer(offsets, np.int32)[ids.offset : ids.offset + len(ids) + 1]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]], ends - ends[0]


def hash_ids(ids: pa.Array) -> KeyArray:
    """Return the keys [n] uint64 of int64 or string ids without nulls; the same on every machine and in every version.

    Text is hashed with XXH3. Integers are mixed with the bijection of SplitMix64 (Steele, Lea and Flood 2014).
    """
    if ids.type == pa.string():
        return np.fromiter(map(xxhash.xxh3_64_intdigest, ids.view(pa.binary()).to_pylist()), np.uint64, len(ids))
    return _hash_integers(ids.to_numpy())


def _hash_integers(ids: npt.NDArray[np.int64]) -> KeyArray:
    key: KeyArray = ids.view(np.uint64)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


def _bucket_count(rows: int) -> int:
    """Return the smallest power of two that is at least the number of rows and at least 2."""
    return int(2 ** max(rows - 1, 1).bit_length())


def _chunks(ids: pa.Array) -> list[Any]:
    return [ids.slice(start, CHUNK_SIZE) for start in range(0, len(ids), CHUNK_SIZE)]
