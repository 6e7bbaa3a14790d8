"""Finds rows that repeat an earlier row exactly."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranking.encoding.vocabulary import GOLDEN_RATIO, stable_hash

Hashes = npt.NDArray[np.uint64]

NULL = np.uint64(0xD1B54A32D192ED03)  # stands for a null among integers; no id or time in use


class DuplicateFilter:
    """Remembers 8 bytes of every row it has seen.

    Rows are told apart by a 64-bit hash: among 10⁸ rows of one partition a false repeat turns up once in 3,700 logs.
    """

    def __init__(self) -> None:
        self._seen: list[Hashes] = []  # sorted, each at least twice as long as the next: a row is moved but log n times

    def first_seen(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Whether each row [rows] is the first of its kind so far."""
        hashes = hash_rows(table)
        unique, first = np.unique(hashes, return_index=True)
        new = np.ones(len(unique), np.bool_)
        for seen in self._seen:
            new &= seen[np.minimum(np.searchsorted(seen, unique), len(seen) - 1)] != unique
        result = np.zeros(len(hashes), np.bool_)
        result[first[new]] = True
        self._remember(unique[new])
        return result

    def _remember(self, hashes: Hashes) -> None:
        if not len(hashes):
            return
        while self._seen and len(self._seen[-1]) < 2 * len(hashes):
            hashes = np.sort(np.concatenate([self._seen.pop(), hashes]), kind="stable")  # which merges two sorted parts
        self._seen.append(hashes)


def hash_rows(table: pa.Table) -> Hashes:
    """Hash of each row over all columns [rows]."""
    hashes = np.zeros(table.num_rows, np.uint64)
    for column in table.columns:
        hashes = _mixed(hashes * GOLDEN_RATIO + _values(column.combine_chunks()))
    return hashes


def _values(column: pa.Array) -> Hashes:
    """64 bits for each value."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    known = _known(column)
    return np.where(column.is_null().to_numpy(zero_copy_only=False), NULL, known) if column.null_count else known


def _known(column: pa.Array) -> Hashes:
    """The same where there is a value; anything where there is none."""
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
        letters = np.frombuffer(data or b"", np.uint8)[ends[0] : ends[-1]]
        return _sequences(letters.astype(np.uint64), np.diff(ends))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        return _sequences(_values(pc.list_flatten(column)), lengths)
    else:
        return np.fromiter(map(stable_hash, column.to_pylist()), np.uint64, len(column))
    numbers: Hashes = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
    return numbers


def _sequences(items: Hashes, lengths: npt.NDArray[np.integer]) -> Hashes:
    """64 bits for each sequence of items: the sum of its items' hashes, each mixed with its position."""
    ends = np.cumsum(lengths)
    position = np.arange(len(items)) - np.repeat(ends - lengths, lengths) + 1
    sums = np.append(np.uint64(0), np.cumsum(_mixed(items + position.astype(np.uint64) * GOLDEN_RATIO)))
    return _mixed(sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64))


def _mixed(bits: Hashes) -> Hashes:
    """Each bit of the result depends on every bit (SplitMix64's finaliser, Steele et al. 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
