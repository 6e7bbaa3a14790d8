"""Sums of counters in a key-value store: one value per root, which holds the sums of all keys of a user or an item.

A value is a header and a section per counter. A section names its counter by a hash of the definition, so that models
whose counters differ can read the same store. The value of the state has the sums over all keys.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ranking.counters.combine import Records
from ranking.counters.keys import CounterKeys, PartHashes, root_part
from ranking.counters.state import CounterState, SumSource, bucket_keys, no_impressions, row_type
from ranking.counters.values import NEVER
from ranking.encoding.vocabulary import IdArray, stable_hash
from ranking.schema import Counter, Schema

Root = Literal["user", "item", "key"]
"""Owner of a value: a user, an item, or one key of a counter whose key has neither."""

FORMAT = 1
HEADER = struct.Struct("<B")
"""Format."""
STATE = struct.Struct("<qqq")
"""Generation; times in microseconds of the last impression in the sums, and of the last one when they were loaded."""
TIME = struct.Struct("<q")
"""A time in microseconds."""
SECTION = struct.Struct("<qI")
"""Definition of the counter, and number of bytes of its records."""

SINCE = -1
"""In place of a definition, which is never negative: section with the time of the first impression in microseconds."""
MAX_SUM = 1e30
"""Largest absolute sum of labels, or number of impressions: the values of features are float32."""
FIRST_TIME, LAST_TIME = -62_135_596_800_000_000, 253_402_300_799_999_999
"""First and last time in microseconds since 1970 that a date can have: the years 1 to 9999."""


@cache
def definition(counter: Counter) -> int:
    """Return a hash of the settings of a counter that determine its sums."""
    return stable_hash((*counter.of, "", *counter.labels, "", counter.window, counter.half_life))


def root_of(counter: Counter, schema: Schema) -> Root:
    """Return the kind of value that holds the sums of a counter."""
    part = root_part(counter, schema)
    user = schema.key_feature("user")
    if part is None:
        return "key"
    return "user" if user is not None and part == user.name else "item"


@cache
def stored_type(counter: Counter) -> np.dtype[Any]:
    """Return the type of a record in a value: ``row_type`` without ``root``, and without ``bucket`` if unused."""
    unused = {"root"} if counter.buckets is not None else {"root", "bucket"}
    fields = row_type(counter).fields
    assert fields is not None
    types = [(name, *_field(kind[0])) for name, kind in fields.items() if name not in unused]
    return np.dtype(types)


def _field(kind: np.dtype[Any]) -> tuple[Any, ...]:
    return (kind.base, kind.shape) if kind.shape else (kind,)


def are_records(counter: Counter, sections: Sequence[bytes]) -> bool:
    """Return whether sections can be those of a counter: whole records, finite sums, and times that dates can have."""
    stored = stored_type(counter)
    if any(len(section) % stored.itemsize for section in sections):
        return False
    data = b"".join(sections)
    if not data:
        return True
    # All fields have eight bytes; the sums are the last ones, and the time precedes them.
    numbers = np.frombuffer(data, "<f8").reshape(-1, stored.itemsize // 8)
    counts, sums = 1 + len(counter.labels), 1 + 2 * len(counter.labels)
    totals = numbers[:, -sums:]
    if not (np.abs(totals).max() <= MAX_SUM and totals[:, :counts].min() >= 0.0):  # also if one is NaN
        return False
    times = np.frombuffer(data, "<i8").reshape(numbers.shape)[:, -sums - 1]
    times = times[times != NEVER]
    return not len(times) or bool(times.min() >= FIRST_TIME and times.max() <= LAST_TIME)


def encode_records(counter: Counter, records: Records) -> npt.NDArray[Any]:
    """Return records as they are stored [n], of type ``stored_type``."""
    stored = np.zeros(len(records), stored_type(counter))
    for name in stored.dtype.names or ():
        stored[name] = records[name]
    return stored


def decode_records(counter: Counter, data: bytes) -> Records:
    """Return the records in a section, of type ``row_type``; ``root`` is 0."""
    stored = np.frombuffer(data, stored_type(counter))
    records = np.zeros(len(stored), row_type(counter))
    for name in stored.dtype.names or ():
        records[name] = stored[name]
    return records


def encode_value(sections: Iterable[tuple[int, bytes]]) -> bytes:
    """Return a value; ``sections`` are the definition and the records of each counter."""
    return HEADER.pack(FORMAT) + _encode_sections(sections)


@dataclass(frozen=True)
class StateValue:
    """Sums over all keys, and the time of the sums.

    Attributes:
        generation: number of the load, which is part of the keys of its values; later ones are larger.
        until: time of the last impression in microseconds.
        loaded_until: the same when the state was loaded; later impressions are added.
        base: stored sums over all keys by definition.
        since: time of the first impression in microseconds; None if it is unknown.
    """

    generation: int
    until: int
    loaded_until: int
    base: Mapping[int, bytes]
    since: int | None = None

    def encode(self) -> bytes:
        """Return the value."""
        header = HEADER.pack(FORMAT) + STATE.pack(self.generation, self.until, self.loaded_until)
        since = {} if self.since is None else {SINCE: TIME.pack(self.since)}
        return header + _encode_sections((since | dict(self.base)).items())

    @staticmethod
    def decode(value: bytes) -> StateValue:
        """Read a value.

        Raises:
            ValueError: it is not the value of a state.
        """
        _check(value, HEADER.size + STATE.size)
        generation, until, loaded_until = STATE.unpack_from(value, HEADER.size)
        base = dict(_sections(value, HEADER.size + STATE.size))
        since = base.pop(SINCE, None)
        return StateValue(generation, until, loaded_until, base, None if since is None else _time(since))


def decode_value(value: bytes) -> list[tuple[int, bytes]]:
    """Return definition and records of each section.

    Raises:
        ValueError: it is not the value of a root.
    """
    _check(value, HEADER.size)
    return list(_sections(value, HEADER.size))


def _time(data: bytes) -> int:
    if len(data) != TIME.size:
        raise ValueError("the time of the first impression is damaged")
    return int(TIME.unpack(data)[0])


def _check(value: bytes, header_size: int) -> None:
    """Check the length and the format of a value."""
    if len(value) < header_size:
        raise ValueError("the value is too short")
    (version,) = HEADER.unpack_from(value)
    if version != FORMAT:
        raise ValueError(f"format {version} is not supported")


def _encode_sections(sections: Iterable[tuple[int, bytes]]) -> bytes:
    return b"".join(SECTION.pack(identifier, len(data)) + data for identifier, data in sections)


def _sections(value: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    while start < len(value):
        if start + SECTION.size > len(value):
            raise ValueError("the value is too short")
        identifier, size = SECTION.unpack_from(value, start)
        start += SECTION.size + size
        if start > len(value):
            raise ValueError("the value is too short")
        yield identifier, value[start - size : start]


@dataclass
class StoredSums:
    """Sums that a store supplies for requests. They replace those of the bundle for the roots that the store has.

    Attributes:
        state: sums over all keys.
        roots: hashes of the roots with a value.
        sections: stored records by definition.
    """

    state: StateValue
    roots: dict[Root, list[int]] = field(default_factory=dict)
    sections: dict[int, list[bytes]] = field(default_factory=dict)

    @staticmethod
    def concat(parts: Sequence[StoredSums]) -> StoredSums:
        """Join the sums of several requests; the newest state counts."""
        if len(parts) == 1:
            return parts[0]
        joined = StoredSums(max((part.state for part in parts), key=lambda state: state.until))
        for part in parts:
            for root, hashes in part.roots.items():
                joined.roots.setdefault(root, []).extend(hashes)
            for identifier, data in part.sections.items():
                joined.sections.setdefault(identifier, []).extend(data)
        return joined

    def source(self, state: CounterState, schema: Schema, keys: CounterKeys, hashes: PartHashes) -> SumSource:
        """Return the sums of one counter for some keys: those of the store, else those of the bundle.

        Args:
            state: sums of the bundle.
            schema: schema of the counter.
            keys: keys of the rows.
            hashes: hashes of the ids from which the keys were computed.
        """
        counter = state.counter
        base = self.state.base.get(definition(counter))
        if base is None:
            return state
        part = root_part(counter, schema)
        roots = keys.keys if part is None else hashes.singles[part].take(keys.rows)
        stored = np.isin(roots, np.array(self.roots.get(root_of(counter, schema), []), np.int64))
        return _StoreFirst(self, state, decode_records(counter, base), stored)

    def find(self, counter: Counter, keys: IdArray, buckets: IdArray | None) -> Records:
        """Return the record of each key [n], and of its bucket with a window; an empty one for an unknown key."""
        records = decode_records(counter, b"".join(self.sections.get(definition(counter), [])))
        records = np.append(records, no_impressions(counter, 1))
        stored_keys = records["key"][:-1]
        if buckets is not None:
            stored_keys, keys = bucket_keys(stored_keys, records["bucket"][:-1]), bucket_keys(keys, buckets)
        order = np.argsort(stored_keys, kind="stable")
        stored_keys = stored_keys[order]
        positions = np.searchsorted(stored_keys, keys)
        found = positions < len(stored_keys)
        found[found] = stored_keys[positions[found]] == keys[found]
        rows = np.full(len(keys), len(order), np.int64)
        rows[found] = order[positions[found]]
        return records.take(rows)


@dataclass(frozen=True)
class _StoreFirst:
    """Sums of the store, else those of the bundle.

    Attributes:
        sums: sums of the store.
        state: sums of the bundle.
        base: sums over all keys in the store.
        stored: whether the store has the root of each key [keys].
    """

    sums: StoredSums
    state: CounterState
    base: Records
    stored: npt.NDArray[np.bool_]

    def find(self, keys: IdArray, buckets: IdArray | None) -> Records:
        """See ``SumSource``; ``keys`` are the keys of ``stored``, each repeated for all buckets of the window."""
        records = self.state.find(keys, buckets)
        stored = np.repeat(self.stored, self.state.counter.buckets or 1)
        if stored.any():
            within = None if buckets is None else buckets[stored]
            records[stored] = self.sums.find(self.state.counter, keys[stored], within)
        return records
