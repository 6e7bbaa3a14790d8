"""Values of counters in the feature store, as the commands of ``ranker counters`` write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ranking.counters.combine import Records
from ranking.counters.stored_sums import (
    Root,
    decode_records,
    decode_value,
    definition,
    encode_records,
    encode_value,
    root_of,
)
from ranking.encoding.vocabulary import IdArray
from ranking.schema import Counter, Schema

SumsByName = Mapping[str, Records]
"""Records of each counter by name. ``root`` is the root of their value, also for counters without a user or an item."""


def distinct_counters(schema: Schema) -> list[Counter]:
    """Return the counters whose sums a store keeps: of equal ones only the first."""
    first: dict[int, Counter] = {}
    for counter in schema.counters:
        first.setdefault(definition(counter), counter)
    return list(first.values())


def counters_by_root(schema: Schema) -> dict[Root, list[Counter]]:
    """Return the distinct counters whose sums share values, by kind of root."""
    groups: dict[Root, list[Counter]] = {}
    for counter in distinct_counters(schema):
        groups.setdefault(root_of(counter, schema), []).append(counter)
    return groups


def with_roots(root: Root, records: Records) -> Records:
    """Return records whose ``root`` is that of their value: the key of a counter without a user or an item."""
    records = records.copy()
    if root == "key":
        records["root"] = records["key"]
    return records


def encode_roots(counters: Sequence[Counter], sums: SumsByName, roots: IdArray) -> Iterator[tuple[int, bytes]]:
    """Yield each root with its value.

    Args:
        counters: counters of one kind of root.
        sums: records of each counter, sorted by root.
        roots: roots to encode, ascending.
    """
    sections = []
    for counter in counters:
        records = sums[counter.name]
        starts = np.searchsorted(records["root"], roots, "left")
        stops = np.searchsorted(records["root"], roots, "right")
        data = encode_records(counter, records[starts[0] : stops[-1]] if len(roots) else records[:0])
        offset, size = starts[0] if len(roots) else 0, data.dtype.itemsize
        bounds = zip(((starts - offset) * size).tolist(), ((stops - offset) * size).tolist(), strict=True)
        sections.append((definition(counter), data.tobytes(), list(bounds)))
    for i, root in enumerate(roots.tolist()):
        parts = [(identifier, data[slice(*bounds[i])]) for identifier, data, bounds in sections]
        yield root, encode_value([part for part in parts if part[1]])


def decode_roots(counters: Sequence[Counter], roots: IdArray, values: Sequence[bytes | None]) -> dict[str, Records]:
    """Return the records of each counter in the values of roots; None stands for a root without a value.

    Raises:
        ValueError: a value cannot be decoded.
    """
    data: dict[int, list[bytes]] = {definition(counter): [] for counter in counters}
    owners: dict[int, list[int]] = {identifier: [] for identifier in data}
    for root, value in zip(roots.tolist(), values, strict=True):
        for identifier, section in () if value is None else decode_value(value):
            if identifier in data:
                data[identifier].append(section)
                owners[identifier].append(root)
    sums = {}
    for counter in counters:
        identifier = definition(counter)
        records = decode_records(counter, b"".join(data[identifier]))
        size = encode_records(counter, records[:0]).dtype.itemsize
        lengths = np.array([len(section) // size for section in data[identifier]], np.int64)
        records["root"] = np.repeat(np.array(owners[identifier], np.int64), lengths)
        sums[counter.name] = records
    return sums


def find_damaged(counters: Sequence[Counter], values: Sequence[bytes | None]) -> list[bool]:
    """Return which values cannot be decoded."""

    def is_damaged(value: bytes | None) -> bool:
        try:
            decode_roots(counters, np.zeros(1, np.int64), [value])
        except ValueError:
            return True
        return False

    return [is_damaged(value) for value in values]
