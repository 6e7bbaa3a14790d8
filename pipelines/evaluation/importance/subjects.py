"""Features that are shuffled together: each feature alone, those of a column, and those of a counter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ranking.schema import CrossFeature, Schema

Kind = Literal["feature", "column", "counter"]
Level = Literal["unit", "row"]


@dataclass(frozen=True)
class Subject:
    """Features that are shuffled together.

    Attributes:
        kind: a feature alone, all features of a column, or all features of a counter.
        name: name of the feature, column or counter.
        features: names of the features whose values move. A cross of one of them is computed again from the moved
            values, unless it is among them: then its own values move.
        crosses: names of the crosses that are computed again.
        level: ``unit`` if the values move from one sampling unit, such as a user, to another; ``row`` if each row
            takes the values of any other row.
    """

    kind: Kind
    name: str
    features: tuple[str, ...]
    crosses: tuple[str, ...]
    level: Level

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the subject without its results."""
        return {
            "kind": self.kind,
            "name": self.name,
            "features": [*self.features, *self.crosses],
            "shuffled_by": self.level,
        }


def subjects_of(schema: Schema) -> list[Subject]:
    """Return the features of a schema, then its columns and counters with several features.

    A feature alone leaves the crosses of it as they are, so that it and its crosses can be told apart. A column or
    counter includes them.
    """
    levels: dict[str, Level] = {f.name: "unit" if f.owner == "user" else "row" for f in schema.inputs}
    for cross in schema.crosses:
        levels[cross.name] = "unit" if all(levels[name] == "unit" for name in cross.of) else "row"
    alone = [Subject("feature", f.name, (f.name,), (), levels[f.name]) for f in schema.features]
    columns: dict[str, list[str]] = {}
    for feature in schema.inputs:
        columns.setdefault(feature.column, []).append(feature.name)
    groups = [_group("column", column, names, schema.crosses, levels) for column, names in columns.items()]
    for counter in schema.counters:
        names = [name for column in counter.columns for name in columns.get(column, ())]
        groups.append(_group("counter", counter.name, names, schema.crosses, levels))
    return [*alone, *(group for group in groups if len(group.features) + len(group.crosses) > 1)]


def _group(
    kind: Kind, name: str, features: list[str], crosses: list[CrossFeature], levels: dict[str, Level]
) -> Subject:
    affected = tuple(cross.name for cross in crosses if not set(features).isdisjoint(cross.of))
    level: Level = "unit" if all(levels[feature] == "unit" for feature in features) else "row"
    return Subject(kind, name, tuple(features), affected, level)
