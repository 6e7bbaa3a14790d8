"""What a store holds of some ids, a JSON object each → columns of values that a ranker can read."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal

import orjson

from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Owner
from service.engine.values import to_columns
from service.feature_store.column_values import Column

Fault = Literal["undecodable", "wrong_type", "unknown_column"]
"""What can be wrong with what a store holds: no JSON object; a value that cannot be read; a column that is not."""

LOST: frozenset[Fault] = frozenset({"undecodable", "wrong_type"})
"""Faults by which something is lost; a column that this version does not read yet is none of them."""


@dataclass(frozen=True)
class Documents:
    """What was read.

    Attributes:
        columns: column → values, one an id, None where the store has none.
        form: names and types of the columns, see ``Request``.
        faults: what was wrong, if anything → what to tell of it; holds no ids and no values.
    """

    columns: Mapping[str, list[Any]]
    form: Hashable
    faults: Mapping[Fault, str]


class Reader:
    """Reads what a store holds of one owner for one ranker.

    Args:
        ranker: that reads it.
        owner: user or item.

    Attributes:
        columns: that the ranker reads, the id's left out: that is known.
    """

    def __init__(self, ranker: FrozenRanker, owner: Owner) -> None:
        self._owner, self._key = owner, ranker.schema.id_column(owner)
        features = [feature for feature in ranker.schema.inputs if feature.owner == owner]
        self.columns = {
            column: Column([feature for feature in features if feature.column == column], ranker.encoder)
            for column in ranker.schema.columns_of(owner)
        }

    def read(self, values: Sequence[bytes | None]) -> Documents:
        """The columns of these ids.

        Args:
            values: what the store holds of each id, None where it holds nothing.
        """
        faults: dict[Fault, str] = {}
        objects, undecodable = _objects(values)
        if undecodable:
            faults["undecodable"] = f"{undecodable} of {len(values)} {self._owner}s are no JSON objects"
        columns = to_columns(objects)
        unknown = columns.keys() - self.columns.keys() - {self._key}
        if unknown:
            faults["unknown_column"] = f"no feature of {self._owner}s reads {_listed(unknown)}"
        read = {name: column.usable(columns[name]) for name, column in self.columns.items() if name in columns}
        wrong = [name for name, usable in read.items() if usable.wrong]
        if wrong:
            faults["wrong_type"] = f"values of {self._owner}s are of a wrong type in {_listed(wrong)}"
        form = tuple((name, usable.kind) for name, usable in read.items())
        return Documents({name: usable.values for name, usable in read.items()}, form, faults)


def _listed(names: Iterable[str]) -> str:
    return f"{', '.join(map(repr, sorted(names))):.200}"


def _objects(values: Sequence[bytes | None]) -> tuple[list[dict[str, Any] | None], int]:
    """Each value as an object, and how many are none."""
    try:
        objects = [None if value is None else orjson.loads(value) for value in values]
    except orjson.JSONDecodeError:
        objects = [None if value is None else _lenient(value) for value in values]
    if not set(map(type, objects)) <= {dict, NoneType}:
        objects = [each if type(each) is dict else None for each in objects]
    return objects, objects.count(None) - list(values).count(None)


def _lenient(value: bytes) -> Any:
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
