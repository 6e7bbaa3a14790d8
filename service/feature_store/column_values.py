"""Which values of a column a ranker can read: what a store holds was written by anybody."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from types import NoneType
from typing import Any, NamedTuple

import pyarrow as pa

from ranking.encoding.encoder import Encoder
from ranking.encoding.vocabulary import Vocabulary
from ranking.schema import InputFeature, NumberFeature, NumericFeature, PooledFeature

Value = Any
"""Of a JSON document, as orjson reads it: its numbers are finite, its text is UTF-8."""

LEAST, MOST = -(2**63), 2**63 - 1


class Usable(NamedTuple):
    """Values of a column that can be read.

    Attributes:
        values: None in place of those that cannot.
        kind: type of the others, or of what their lists hold; numbers count as float.
        wrong: how many cannot be read.
    """

    values: list[Value]
    kind: type
    wrong: int


class Column:
    """The values of one column that can be read as a request's are: numbers, ids, or lists of ids.

    Args:
        features: that read the column.
        encoder: of the ranker.
    """

    def __init__(self, features: Sequence[InputFeature], encoder: Encoder) -> None:
        self._lists = any(isinstance(feature, PooledFeature) for feature in features)
        self._numbers = any(isinstance(feature, NumberFeature) for feature in features)
        self._ids = not all(isinstance(feature, NumberFeature) for feature in features)
        self._logs = any(isinstance(feature, NumericFeature) and feature.transform == "log1p" for feature in features)
        spaces = [encoder.id_mappings[feature.table] for feature in features if not isinstance(feature, NumberFeature)]
        integers = any(isinstance(space, Vocabulary) and pa.types.is_integer(space.ids.type) for space in spaces)
        self._types = {int, float} if not self._ids else {int} if integers or self._numbers else {int, str}

    def usable(self, values: list[Value]) -> Usable:
        """The values that can be read: found for the column as a whole, one by one only if some are wrong."""
        if not self._lists:
            kind = self._kind(values)
        elif set(map(type, values)) <= {list, NoneType}:
            kind = self._kind(list(chain(*filter(None, values))))
        else:
            kind = None
        if kind is not None:
            return Usable(values, kind, 0)
        read = [self._list(value) if self._lists else self._single(value) for value in values]
        kind = (str if str in self._types else int) if self._ids else float
        return Usable(read, kind, read.count(None) - values.count(None))

    def _kind(self, values: list[Value]) -> type | None:
        """The type of values that can all be read as they are; None if one cannot."""
        kinds = set(map(type, values)) - {NoneType}
        if not kinds <= self._types or (self._ids and len(kinds) > 1):
            return None
        if self._logs and min(filter(None, values), default=0) <= -1:
            return None
        if self._ids and int in kinds and max(filter(None, values), default=0) > MOST:
            return None
        return (kinds.pop() if kinds else NoneType) if self._ids else float

    def _list(self, value: Value) -> list[Value] | None:
        if type(value) is not list:
            return None
        read = [self._single(each) for each in value if each is not None]
        return None if None in read else read

    def _single(self, value: Value) -> Value | None:
        """The value as the ranker knows such; None if it cannot be read."""
        kind = type(value)
        if self._numbers and (kind not in (int, float) or (self._logs and value <= -1)):
            return None
        if not self._ids:
            return value
        if kind is str and str not in self._types:
            value, kind = _integer(value), int
        if kind is int and value is not None and LEAST <= value <= MOST:
            return value if str not in self._types else str(value)  # as others of the column
        return value if kind is str else None


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
