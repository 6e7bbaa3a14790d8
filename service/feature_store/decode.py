"""Decoding of the JSON objects in a feature store into columns that a ranker can read.

Any program may write to the store, so that every value is checked.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import NoneType
from typing import Any, Literal, NamedTuple

import orjson
import pyarrow as pa

from ranking.encoding.columns import parse_id
from ranking.encoding.encoder import Encoder
from ranking.encoding.vocabulary import Vocabulary
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import InputFeature, NumberFeature, NumericFeature, Owner, PooledFeature
from service.engine.values import to_columns

Fault = Literal["undecodable", "wrong_type", "unknown_column"]
"""Kinds of unusable content: a value that is not a JSON object, a value of the wrong type, or an unread column."""

DEGRADING_FAULTS: frozenset[Fault] = frozenset({"undecodable", "wrong_type"})
"""Faults that lose features. A column that this version does not read loses nothing."""

Value = Any
"""JSON value as orjson decodes it: numbers are finite, text is valid UTF-8."""

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class DecodedColumns:
    """Columns decoded from the objects of one owner.

    Attributes:
        columns: column → one value per id, None where the store has none.
        signature: names and types of the columns, see ``StoreFeatures``.
        faults: kind of fault → message without ids and values.
    """

    columns: Mapping[str, list[Value]]
    signature: Hashable
    faults: Mapping[Fault, str]


class ObjectDecoder:
    """Decodes the stored objects of one owner for one ranker.

    Args:
        ranker: ranker that reads the columns.
        owner: user or item.

    Attributes:
        columns: columns that the ranker reads, without the id column.
    """

    def __init__(self, ranker: FrozenRanker, owner: Owner) -> None:
        self._owner, self._id_column = owner, ranker.schema.id_column(owner)
        features = [feature for feature in ranker.schema.inputs if feature.owner == owner]
        self.columns = {
            column: ColumnDecoder([feature for feature in features if feature.column == column], ranker.encoder)
            for column in ranker.schema.columns_of(owner)
        }

    def decode(self, values: Sequence[bytes | None]) -> DecodedColumns:
        """Decode the stored values of some ids, None where the store has none."""
        faults: dict[Fault, str] = {}
        objects, undecodable = _parse_objects(values)
        if undecodable:
            faults["undecodable"] = f"{undecodable} of {len(values)} {self._owner}s are not JSON objects"
        columns = to_columns(objects)
        unknown = columns.keys() - self.columns.keys() - {self._id_column}
        if unknown:
            faults["unknown_column"] = f"no feature of {self._owner}s reads {_quoted_list(unknown)}"
        decoded = {name: column.decode(columns[name]) for name, column in self.columns.items() if name in columns}
        wrong = [name for name, column in decoded.items() if column.wrong]
        if wrong:
            faults["wrong_type"] = f"values of {self._owner}s are of the wrong type in {_quoted_list(wrong)}"
        signature = tuple((name, column.value_type) for name, column in decoded.items())
        return DecodedColumns({name: column.values for name, column in decoded.items()}, signature, faults)


class ColumnValues(NamedTuple):
    """Values of one column.

    Attributes:
        values: values, with None in place of those of the wrong type.
        value_type: type of the values, or of the elements of lists; numbers are float.
        wrong: number of values of the wrong type.
    """

    values: list[Value]
    value_type: type
    wrong: int


class ColumnDecoder:
    """Checks the values of one column, which may be numbers, ids, or lists of ids.

    Args:
        features: features that read the column.
        encoder: encoder of the ranker.
    """

    def __init__(self, features: Sequence[InputFeature], encoder: Encoder) -> None:
        self._has_lists = any(isinstance(feature, PooledFeature) for feature in features)
        self._has_numbers = any(isinstance(feature, NumberFeature) for feature in features)
        self._has_ids = not all(isinstance(feature, NumberFeature) for feature in features)
        self._has_log1p = any(isinstance(f, NumericFeature) and f.transform == "log1p" for f in features)
        mappings = [encoder.id_mappings[f.table] for f in features if not isinstance(f, NumberFeature)]
        integer_ids = any(isinstance(m, Vocabulary) and pa.types.is_integer(m.id_type) for m in mappings)
        self._types: set[type] = {int, str}
        if not self._has_ids:
            self._types = {int, float}
        elif integer_ids or self._has_numbers:
            self._types = {int}

    def decode(self, values: list[Value]) -> ColumnValues:
        """Check the column as a whole, and value by value only if some values are of the wrong type."""
        common_type: type | None = None
        if not self._has_lists:
            common_type = self._common_type(values)
        elif set(map(type, values)) <= {list, NoneType}:
            common_type = self._common_type(list(chain(*filter(None, values))))
        if common_type is not None:
            return ColumnValues(values, common_type, 0)
        converted = [self._convert_list(value) if self._has_lists else self._convert(value) for value in values]
        converted_type: type = float
        if self._has_ids:
            converted_type = str if str in self._types else int
        return ColumnValues(converted, converted_type, converted.count(None) - values.count(None))

    def _common_type(self, values: list[Value]) -> type | None:
        """Return the type of values that need no conversion, or None if one of them does."""
        types = set(map(type, values)) - {NoneType}
        if not types <= self._types or (self._has_ids and len(types) > 1):
            return None
        if self._has_log1p and min(filter(None, values), default=0) <= -1:
            return None
        if self._has_ids and int in types and max(filter(None, values), default=0) > INT64_MAX:
            return None
        if not self._has_ids:
            return float
        return types.pop() if types else NoneType

    def _convert_list(self, value: Value) -> list[Value] | None:
        if type(value) is not list:
            return None
        converted = [self._convert(element) for element in value if element is not None]
        return None if None in converted else converted

    def _convert(self, value: Value) -> Value | None:
        """Convert a value to the type of the column, or return None if it is of the wrong type."""
        value_type = type(value)
        if self._has_numbers and (value_type not in (int, float) or (self._has_log1p and value <= -1)):
            return None
        if not self._has_ids:
            return value
        if value_type is str and str not in self._types:
            value, value_type = parse_id(value), int
        if value_type is int and value is not None and INT64_MIN <= value <= INT64_MAX:
            return value if str not in self._types else str(value)
        return value if value_type is str else None


def _quoted_list(names: Iterable[str]) -> str:
    """Return quoted names, cut to 200 characters."""
    return f"{', '.join(map(repr, sorted(names))):.200}"


def _parse_objects(values: Sequence[bytes | None]) -> tuple[list[dict[str, Any] | None], int]:
    """Return the values as objects, and the number of values that are not objects."""
    try:
        objects = [None if value is None else orjson.loads(value) for value in values]
    except orjson.JSONDecodeError:
        objects = [None if value is None else _parse_json(value) for value in values]
    if not set(map(type, objects)) <= {dict, NoneType}:
        objects = [document if type(document) is dict else None for document in objects]
    return objects, objects.count(None) - list(values).count(None)


def _parse_json(value: bytes) -> Any:
    """Return a JSON value, or None if it cannot be parsed."""
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
