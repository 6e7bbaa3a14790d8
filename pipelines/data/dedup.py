"""Detection of rows that exactly repeat an earlier row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranking.encoding.vocabulary import GOLDEN_RATIO, stable_hash

Hashes = npt.NDArray[np.uint64]

NULL = np.uint64(0xD1B54A32D192ED03)
"""Hash of a null. As an integer it is far outside the ids and times in use."""


class DuplicateFilter:
    """Set of the rows seen so far, at 8 bytes per row.

    Rows are compared by a 64-bit hash. With 10⁸ rows in one partition, the probability of a false duplicate is about
    1 in 3,700.
    """

    def __init__(self) -> None:
        # Sorted arrays, each at least twice as long as the next, so that each hash is merged at most log₂ n times.
        self._seen: list[Hashes] = []

    def first_seen(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return whether each row [rows] is the first of its kind, and remember all rows."""
        hashes = hash_rows(table)
        unique, first = np.unique(hashes, return_index=True)
        new = ~self.contains(unique)
        result = np.zeros(len(hashes), np.bool_)
        result[first[new]] = True
        self._remember(unique[new])
        return result

    def contains(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Return whether each hash [rows] was remembered."""
        found = np.zeros(len(hashes), np.bool_)
        for seen in self._seen:
            found |= seen[np.minimum(np.searchsorted(seen, hashes), len(seen) - 1)] == hashes
        return found

    def add(self, hashes: Hashes) -> None:
        """Remember hashes [rows]."""
        unique = np.unique(hashes)
        self._remember(unique[~self.contains(unique)])

    def _remember(self, hashes: Hashes) -> None:
        if not len(hashes):
            return
        while self._seen and len(self._seen[-1]) < 2 * len(hashes):
            # The stable sort merges two sorted parts in linear time.
            hashes = np.sort(np.concatenate([self._seen.pop(), hashes]), kind="stable")
        self._seen.append(hashes)


def hash_rows(table: pa.Table) -> Hashes:
    """Return a 64-bit hash of each row over all columns [rows]."""
    hashes = np.zeros(table.num_rows, np.uint64)
    for column in table.columns:
        hashes = _finalize(hashes * GOLDEN_RATIO + value_hashes(column.combine_chunks()))
    return hashes


def value_hashes(column: pa.Array) -> Hashes:
    """Return a 64-bit hash of each value [rows]; lists are hashed as a whole."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    hashes = _hash_valid(column)
    return np.where(column.is_null().to_numpy(zero_copy_only=False), NULL, hashes) if column.null_count else hashes


def _hash_valid(column: pa.Array) -> Hashes:
    """Return 64 bits for each value; the bits of a null are arbitrary."""
    kind = column.type
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_temporal(kind):
        column = column.view(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    elif pa.types.is_integer(kind):
        column = column.cast(pa.int64(), safe=False)
    elif pa.types.is_floating(kind):
        column = column.cast(pa.float64()).view(pa.int64())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        column = column.fill_null("").cast(pa.large_binary())
        _, offsets, data = column.buffers()
        ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        characters = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
        return _hash_sequences(characters.astype(np.uint64), np.diff(ends))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        return _hash_sequences(value_hashes(pc.list_flatten(column)), lengths)
    else:
        return np.fromiter(map(stable_hash, column.to_pylist()), np.uint64, len(column))
    numbers: Hashes = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
    return numbers


def _hash_sequences(items: Hashes, lengths: npt.NDArray[np.integer]) -> Hashes:
    """Return 64 bits for each sequence: the sum of its items' hashes, each mixed with the item's position."""
    ends = np.cumsum(lengths)
    position = np.arange(len(items)) - np.repeat(ends - lengths, lengths) + 1
    sums = np.append(np.uint64(0), np.cumsum(_finalize(items + position.astype(np.uint64) * GOLDEN_RATIO)))
    return _finalize(sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64))


def _finalize(bits: Hashes) -> Hashes:
    """Make each bit of the result depend on every bit (finalizer of SplitMix64, Steele et al. 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
