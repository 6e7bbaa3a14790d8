"""Hash index from integer or text ids to row numbers, made of arrays that processes map and share.

keys.npy      64-bit hash keys of the rows' ids, ascending, then ``SENTINEL``
starts.npy    number of keys below each value of a key's highest bits, which is the position of the first such key
checks.npy    64 more bits of the hash of each text id; absent for integers, whose keys differ
text.npy, ends.npy   text of the ids instead of checks, in bundles of format 2

A lookup reads memory twice: once in ``starts`` and once (rarely more) in ``keys``; text once more in ``checks``. Binary
search would need one read for each bit of the number of rows. ``hashes`` defines the hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.errors import InvalidInputError
from ranking.ids.hashes import HashArray, IdQuery, Matches, hash_integers, hash_texts, to_utf8
from ranking.ids.npy import ReadFile, map_file, open_array
from ranking.ids.text import IdText

NOT_FOUND = -1
"""Row of an id that is not in the index."""

CHUNK_SIZE = 65_536
"""Number of ids that are hashed at once."""

RowArray = npt.NDArray[np.int64]

SENTINEL = np.uint64(2**64 - 1)
"""Key after those of all rows, which ends a search."""


class IdIndex:
    """Index from ids to rows.

    Args:
        keys: hash keys of the rows' ids, ascending, then ``SENTINEL`` [rows + 1].
        starts: number of keys below each value of the highest bits [power of two, ≥ rows] uint32.
        text: distinguishes text ids, which may have equal keys; None for integers, whose keys differ.
    """

    def __init__(self, keys: HashArray, starts: npt.NDArray[np.uint32], text: IdChecks | IdText | None) -> None:
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
        rows = self._find_keys(hash_integers(ids.to_numpy())) if self._text is None else self._find_text(to_utf8(ids))
        return rows if valid is None else np.where(valid, rows, NOT_FOUND)

    def rows_from_values(self, ids: Sequence[Any] | RowArray) -> RowArray:
        """Return the same as ``rows`` for Python values or a NumPy array.

        Args:
            ids: ids of the index's type, 64-bit integers or text, without None.

        Raises:
            TypeError: the ids of the index are text, but one of these is not.
        """
        if self._text is None:
            return self._find_keys(hash_integers(np.asarray(ids, np.int64)))
        return self._find_text(list(map(str.encode, ids)))

    def _find_text(self, texts: Sequence[bytes]) -> RowArray:
        assert self._text is not None
        keys, matches = self._text.query(texts)
        rows = self._find_keys(keys)
        self._resolve_collisions(rows, keys, matches)
        return rows

    def _find_keys(self, keys: HashArray) -> RowArray:
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

    def _resolve_collisions(self, rows: RowArray, keys: HashArray, matches: Matches) -> None:
        """Advance each row [n] in place to the row with the same key and the query's id, or to ``NOT_FOUND``."""
        pending = np.flatnonzero(rows != NOT_FOUND)
        while len(pending):
            pending = pending[~matches(rows[pending], pending)]
            following = rows[pending] + 1
            has_same_key = (self._keys.take(following) == keys[pending]) & (following < len(self))
            rows[pending] = np.where(has_same_key, following, NOT_FOUND)
            pending = pending[has_same_key]

    @classmethod
    def build(cls, ids: pa.Array, column: str = "id") -> tuple[Self, RowArray]:
        """Return the index of ids in memory, and the position in ``ids`` of the id of each row [rows].

        Args:
            ids: as for ``write_id_index``.
            column: name of the ids in the error message.

        Raises:
            InvalidInputError: two ids have the same hash.
        """
        keys, starts, checks, order = _build(ids, column)
        return cls(keys, starts, None if checks is None else IdChecks(checks)), order

    def write(self, folder: Path) -> None:
        """Write ``keys.npy`` and ``starts.npy`` to an existing folder, and for text also ``checks.npy``."""
        np.save(folder / "keys.npy", self._keys)
        np.save(folder / "starts.npy", self._starts)
        if self._text is not None:
            assert isinstance(self._text, IdChecks), "format 2 is only read"
            np.save(folder / "checks.npy", self._text.checks)

    @classmethod
    def open(cls, folder: Path, id_type: pa.DataType, read_file: ReadFile = map_file) -> Self:
        """Open an index that ``write_id_index`` wrote, or one of text ids in a bundle of format 2.

        Args:
            folder: folder of the index.
            id_type: type of the ids, int64 or string.
            read_file: returns the content of a file.

        Raises:
            OSError, ValueError: the files are not an index of this type.
        """
        keys = open_array(folder / "keys.npy", np.uint64, read_file)
        if not len(keys) or keys[-1] != SENTINEL:
            raise ValueError(f"keys.npy does not end with the key {SENTINEL}")
        starts = open_array(folder / "starts.npy", np.uint32, read_file)
        if len(starts) != _bucket_count(len(keys) - 1):
            raise ValueError(f"starts.npy holds {len(starts)} rows, which is wrong for {len(keys)} keys")
        if starts.max() >= len(keys):
            raise ValueError(f"starts.npy holds {starts.max()}, which is not a position in {len(keys)} keys")
        if id_type != pa.string():
            return cls(keys, starts, None)
        text = _open_text(folder, read_file)
        if len(text) != len(keys) - 1:
            raise ValueError(f"{_text_file(folder)} is of {len(text)} ids, not {len(keys) - 1}")
        return cls(keys, starts, text)


class IdChecks:
    """Checks of the text ids of an index: the low 64 bits of their hashes, which distinguish ids with equal keys.

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


def holds_text(folder: Path) -> bool:
    """Return whether the ids of the index in a folder are text."""
    return (folder / "checks.npy").exists() or (folder / "text.npy").exists()


def _text_file(folder: Path) -> str:
    """Return the name of the file that has one entry per text id."""
    has_text = (folder / "text.npy").exists() and not (folder / "checks.npy").exists()
    return "ends.npy" if has_text else "checks.npy"


def _open_text(folder: Path, read_file: ReadFile) -> IdChecks | IdText:
    if _text_file(folder) == "checks.npy":
        return IdChecks(open_array(folder / "checks.npy", np.uint64, read_file))
    data = open_array(folder / "text.npy", np.uint8, read_file)
    return IdText(data, open_array(folder / "ends.npy", np.int64, read_file))


def write_id_index(ids: pa.Array, folder: Path, column: str = "id") -> RowArray:
    """Write the index of ids as ``keys.npy`` and ``starts.npy``, and for text also ``checks.npy``.

    Args:
        ids: int64 or string, without nulls or duplicates.
        folder: an existing folder.
        column: name of the ids in the error message.

    Returns:
        Position in ``ids`` of the id of each row [rows].

    Raises:
        InvalidInputError: two ids have the same hash.
    """
    index, order = IdIndex.build(ids, column)
    index.write(folder)
    return order


def _build(ids: pa.Array, column: str) -> tuple[HashArray, npt.NDArray[np.uint32], HashArray | None, RowArray]:
    """Return keys, starts and checks (None for integers) of the index of ids, and the position of each row's id."""
    checks = None
    if ids.type == pa.string():
        hashes = [hash_texts(to_utf8(chunk)) for chunk in _chunks(ids)]
        keys, checks = np.concatenate([hash_texts([]), *hashes], axis=1)
        order = np.lexsort((checks, keys))
        keys, checks = keys[order], checks[order]
        _require_different(ids, keys, checks, order, column)
    else:
        keys = hash_integers(ids.to_numpy())
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
    buckets = _bucket_count(len(keys))
    counts = np.bincount((keys >> np.uint64(65 - buckets.bit_length())).view(np.int64), minlength=buckets)
    return np.append(keys, SENTINEL), (np.cumsum(counts) - counts).astype(np.uint32), checks, order


def _require_different(ids: pa.Array, keys: HashArray, checks: HashArray, order: RowArray, column: str) -> None:
    """Check that the rows, whose ids are at the positions ``order``, have different hashes.

    Raises:
        InvalidInputError: two rows have the same key and check.
    """
    equal = np.flatnonzero((keys[1:] == keys[:-1]) & (checks[1:] == checks[:-1]))
    if len(equal):
        one, other = sorted(order[equal[0] : equal[0] + 2].tolist())
        reason = f"ids {ids[one].as_py()!r} and {ids[other].as_py()!r} have the same 128-bit hash: rename one of them"
        raise InvalidInputError(column, reason, other)


def _bucket_count(rows: int) -> int:
    """Return the smallest power of two that is at least the number of rows and at least 2."""
    return int(2 ** max(rows - 1, 1).bit_length())


def _chunks(ids: pa.Array) -> list[pa.Array]:
    return [ids.slice(start, CHUNK_SIZE) for start in range(0, len(ids), CHUNK_SIZE)]
