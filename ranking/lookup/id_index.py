"""Where an id stands: from integers or text to row numbers, by arrays that processes can map and share.

A hash table laid flat. Rows are sorted by a 64-bit key of their id whose bits are evenly spread, and ``starts`` says
where the keys begin that share their highest bits. So an id costs two reads of memory, one in ``starts`` and one,
seldom more, in ``keys``, where binary search costs one for each bit of the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from ranking.lookup.npy import ArrayWriter, open_array

UNKNOWN = -1
"""Row of an id that the index does not hold."""

CHUNK = 65_536
"""Ids that are hashed or written at a time."""

KeyArray = npt.NDArray[np.uint64]
RowArray = npt.NDArray[np.int64]

LAST = np.uint64(2**64 - 1)
"""Stands behind the keys of all rows, so that a search ends there."""

WORD = 8
"""Bytes of text that are compared at a time."""

MASKS = np.array([2 ** (8 * count) - 1 for count in range(WORD + 1)], np.uint64)
"""The bits of a word's first bytes, by how many of its bytes count."""


class IdText:
    """Text of the rows' ids, one after the other.

    Args:
        data: UTF-8, then ``WORD`` bytes more [bytes] uint8.
        ends: where each row's text ends and the next begins [rows + 1], the first being 0.
    """

    def __init__(self, data: npt.NDArray[np.uint8], ends: npt.NDArray[np.signedinteger[Any]]) -> None:
        self._ends = ends
        self._words: KeyArray = np.ndarray(len(data) - WORD + 1, "<u8", data, strides=(1,))  # one from each byte on

    @classmethod
    def from_ids(cls, ids: pa.Array) -> Self:
        """Text of an array of strings."""
        data, ends = _text(ids)
        return cls(np.append(data, np.zeros(WORD, np.uint8)), ends)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def equals(self, rows: RowArray, other: IdText, theirs: RowArray) -> npt.NDArray[np.bool_]:
        """Whether the text of each of these rows [n] is that of the other's row [n]."""
        first, second = self._ends.take(rows), other._ends.take(theirs)
        lengths = self._ends.take(rows + 1) - first
        same: npt.NDArray[np.bool_] = lengths == other._ends.take(theirs + 1) - second
        left = np.flatnonzero(same)
        first, second, lengths = first[left], second[left], lengths[left]
        while len(left):
            differs = (self._words[first] ^ other._words[second]) & MASKS.take(lengths, mode="clip")
            same[left] = differs == 0
            longer = (differs == 0) & (lengths > WORD)
            left = left[longer]
            first, second, lengths = first[longer] + WORD, second[longer] + WORD, lengths[longer] - WORD
        return same


class IdIndex:
    """The rows of ids.

    Args:
        keys: of the rows' ids, ascending, then ``LAST`` [rows + 1].
        starts: how many keys are smaller than each value of the highest bits [power of two, ≥ rows] uint32.
        text: of the rows' ids if they are text: another id may have the same key. None for integers: theirs differ.
    """

    def __init__(self, keys: KeyArray, starts: npt.NDArray[np.uint32], text: IdText | None) -> None:
        self._keys = keys
        self._starts = starts
        self._text = text
        self._shift = np.uint64(65 - len(starts).bit_length())

    def __len__(self) -> int:
        return len(self._keys) - 1

    def rows(self, ids: pa.Array) -> RowArray:
        """The row of each id [n] int64, ``UNKNOWN`` if there is none.

        Args:
            ids: int64 or string, as the index has them; nulls are unknown.
        """
        known = None
        if ids.null_count:
            known = ids.is_valid().to_numpy(zero_copy_only=False)
            ids = ids.fill_null(0 if self._text is None else "")
        rows = self._find(keys_of(ids), None if self._text is None else IdText.from_ids(ids))
        return rows if known is None else np.where(known, rows, UNKNOWN)

    def rows_of(self, ids: Sequence[Any] | RowArray) -> RowArray:
        """The same of an array or of Python values: 64-bit integers if the index has those, else text; none is None."""
        if self._text is None:
            return self._find(_mixed(np.asarray(ids, np.int64)), None)
        texts = [str.encode(text) for text in ids]
        keys = np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts))
        ends = np.cumsum([0, *map(len, texts)])
        return self._find(keys, IdText(np.frombuffer(b"".join([*texts, bytes(WORD)]), np.uint8), ends))

    def _find(self, keys: KeyArray, wanted: IdText | None) -> RowArray:
        rows = self._first(keys)
        if self._text is not None and wanted is not None:
            self._compare(rows, keys, self._text, wanted)
        return rows

    def _first(self, keys: KeyArray) -> RowArray:
        """The first row with each key [n]."""
        rows = self._starts.take((keys >> self._shift).view(np.int64)).astype(np.int64)
        found = self._keys.take(rows)
        left = np.flatnonzero(found < keys)
        wanted, at = keys[left], rows[left]
        while len(left):
            at += 1
            rows[left], found[left] = at, self._keys.take(at)
            further = found[left] < wanted
            left, wanted, at = left[further], wanted[further], at[further]
        return np.where((found == keys) & (rows < len(self)), rows, UNKNOWN)

    def _compare(self, rows: RowArray, keys: KeyArray, text: IdText, wanted: IdText) -> None:
        """Moves each row [n] to the one of its key whose text is the wanted one, or to ``UNKNOWN``."""
        left = np.flatnonzero(rows != UNKNOWN)
        while len(left):
            left = left[~text.equals(rows[left], wanted, left)]
            following = rows[left] + 1
            alike = (self._keys.take(following) == keys[left]) & (following < len(self))
            rows[left] = np.where(alike, following, UNKNOWN)
            left = left[alike]

    @classmethod
    def open(cls, folder: Path, kind: pa.DataType) -> Self:
        """The index that ``write_id_index`` wrote, mapped.

        Args:
            folder: where.
            kind: of the ids, int64 or string.

        Raises:
            OSError, ValueError: the files are not those of such an index.
        """
        keys, starts = open_array(folder / "keys.npy", np.uint64), open_array(folder / "starts.npy", np.uint32)
        if len(starts) != _buckets(len(keys) - 1):
            raise ValueError(f"starts.npy holds {len(starts)} rows, which is wrong for {len(keys)} keys")
        text = None
        if kind == pa.string():
            text = IdText(open_array(folder / "text.npy", np.uint8), open_array(folder / "ends.npy", np.int64))
            if len(text) != len(keys) - 1:
                raise ValueError(f"ends.npy holds the text of {len(text)} ids, not {len(keys) - 1}")
        return cls(keys, starts, text)


def write_id_index(ids: pa.Array, folder: Path) -> RowArray:
    """Writes the index of ids as ``keys.npy``, ``starts.npy`` and, of text, ``text.npy`` and ``ends.npy``.

    Args:
        ids: int64 or string, without nulls or repeats.
        folder: exists.

    Returns:
        Which of the ids stands in each row [rows].
    """
    keys = np.concatenate([keys_of(ids.slice(0, 0)), *(keys_of(chunk) for chunk in _chunks(ids))])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    np.save(folder / "keys.npy", np.append(keys, LAST))
    buckets = _buckets(len(keys))
    counts = np.bincount((keys >> np.uint64(65 - buckets.bit_length())).view(np.int64), minlength=buckets)
    np.save(folder / "starts.npy", (np.cumsum(counts) - counts).astype(np.uint32))
    if ids.type == pa.string():
        _write_text(ids, order, folder)
    return order


def _write_text(ids: pa.Array, order: RowArray, folder: Path) -> None:
    with ArrayWriter(folder / "text.npy", np.uint8) as texts, ArrayWriter(folder / "ends.npy", np.int64) as all_ends:
        last = 0
        all_ends.append(np.zeros(1, np.int64))
        for rows in _chunks(pa.array(order)):
            text, ends = _text(ids.take(rows))
            texts.append(text)
            all_ends.append(last + ends[1:].astype(np.int64))
            last += len(text)
        texts.append(np.zeros(WORD, np.uint8))


def _text(ids: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """UTF-8 of strings without nulls [bytes], and where each ends and the next begins [n + 1], the first being 0."""
    _, offsets, data = ids.buffers()
    if not len(ids) or data is None:
        return np.empty(0, np.uint8), np.zeros(len(ids) + 1, np.int32)
    ends = np.frombuffer(offsets, np.int32)[ids.offset : ids.offset + len(ids) + 1]
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]], ends - ends[0]


def keys_of(ids: pa.Array) -> KeyArray:
    """Keys [n] uint64 of int64 or string ids without nulls; the same on every machine and in every version.

    Text has XXH3; integers are mixed as SplitMix64 does (Steele, Lea and Flood 2014), one to one.
    """
    if ids.type == pa.string():
        return np.fromiter(map(xxhash.xxh3_64_intdigest, ids.view(pa.binary()).to_pylist()), np.uint64, len(ids))
    return _mixed(ids.to_numpy())


def _mixed(ids: npt.NDArray[np.int64]) -> KeyArray:
    key: KeyArray = ids.view(np.uint64)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))


def _buckets(rows: int) -> int:
    """Smallest power of two that is at least the number of rows, and two."""
    return int(2 ** max(rows - 1, 1).bit_length())


def _chunks(ids: pa.Array) -> list[Any]:
    return [ids.slice(start, CHUNK) for start in range(0, len(ids), CHUNK)]
