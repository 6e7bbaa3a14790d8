"""Which values of a column a ranker can read: what a store holds was written by anybody."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from types import NoneType
from typing import Any

import pyarrow as pa

from ranking.encoding import Encoder
from ranking.id_spaces import Vocabulary
from ranking.schema import GivenFeature, NumberFeature, NumericFeature, PooledFeature

Value = Any
"""Of a JSON document, as orjson reads it: its numbers are finite, its text is UTF-8."""

LEAST, MOST = -(2**63), 2**63 - 1


class Column:
    """The values of one column that can be read as a request's are: numbers, ids, or lists of ids.

    Args:
        features: that read the column.
        encoder: of the ranker.
    """

    def __init__(self, features: Sequence[GivenFeature], encoder: Encoder) -> None:
        self._lists = any(isinstance(feature, PooledFeature) for feature in features)
        self._numbers = any(isinstance(feature, NumberFeature) for feature in features)
        self._ids = not all(isinstance(feature, NumberFeature) for feature in features)
        self._logs = any(isinstance(feature, NumericFeature) and feature.transform == "log1p" for feature in features)
        spaces = [encoder.id_spaces[feature.table] for feature in features if not isinstance(feature, NumberFeature)]
        self._integers = any(isinstance(space, Vocabulary) and pa.types.is_integer(space.ids.type) for space in spaces)

    def usable(self, values: list[Value]) -> tuple[list[Value], int]:
        """The values, None in place of those that cannot be read, and how many these are.

        The column is looked at as a whole first, and value by value only if something is wrong.
        """
        if not self._lists:
            if self._fine(values):
                return values, 0
            read = [self._single(value) for value in values]
        else:
            if set(map(type, values)) <= {list, NoneType} and self._fine(list(chain(*filter(None, values)))):
                return values, 0
            read = [self._list(value) for value in values]
        return read, read.count(None) - values.count(None)

    def _fine(self, values: list[Value]) -> bool:
        """Whether all can be read as they are."""
        kinds = set(map(type, values)) - {NoneType}
        if self._numbers:
            fine = kinds <= ({int} if self._ids else {int, float})
            if fine and self._logs:
                fine = min(filter(None, values), default=0) > -1
        else:
            fine = kinds <= {int} or (kinds == {str} and not self._integers)
        return fine and not (self._ids and int in kinds and max(filter(None, values), default=0) > MOST)

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
        if kind is str and self._integers:
            value, kind = _integer(value), int
        if kind is int and value is not None and LEAST <= value <= MOST:
            return value if self._integers or self._numbers else str(value)  # as text, for others of the column are
        return value if kind is str else None


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
