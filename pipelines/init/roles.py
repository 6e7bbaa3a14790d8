"""Guess of the role of every column of a log and its side tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc

from pipelines.init.column_profile import ColumnProfile, profile_columns
from pipelines.init.conversions import Conversions
from pipelines.init.features import guess_feature, id_feature
from pipelines.init.guesses import ColumnGuess, FeatureGuess, FindOwner, LeftOut, OwnerGuess, TaskGuess
from pipelines.init.ids import guess_item, guess_request, guess_user, guess_weight
from pipelines.init.labels import find_outcomes, guess_labels, require_labels
from pipelines.init.names import identifier
from pipelines.init.owners import OwnerGuesser
from pipelines.init.side_table import SideTable, guess_side_table
from pipelines.init.source import Source
from pipelines.init.time_column import guess_time
from ranking.errors import LogError
from ranking.schema import Owner

MIN_ITEMS = 0.5
"""Minimum share of the elements of a list that are item ids, for it to share their embeddings."""


@dataclass(frozen=True)
class Overrides:
    """Columns that the user names.

    Attributes:
        time: time column; None to guess it.
        user: column of user ids; None to guess it.
        item: column of item ids; None to guess it.
        labels: label columns; empty to guess them.
    """

    time: str | None = None
    user: str | None = None
    item: str | None = None
    labels: Sequence[str] = ()


@dataclass(frozen=True)
class Roles:
    """Roles of the columns of a log.

    Attributes:
        time: time column.
        user: column of user ids.
        item: column of item ids.
        request: column of requests; None without one.
        weight: column of sample weights; None without one.
        tasks: tasks.
        features: features of the log.
        left_out: columns of the log that are not read.
        sides: tables of users and items.
    """

    time: ColumnGuess
    user: ColumnGuess
    item: ColumnGuess
    request: ColumnGuess | None
    weight: ColumnGuess | None
    tasks: list[TaskGuess]
    features: list[FeatureGuess]
    left_out: list[LeftOut]
    sides: list[SideTable]

    @property
    def all_features(self) -> list[FeatureGuess]:
        """Features of the log, then those of the side tables."""
        return [*self.features, *(feature for side in self.sides for feature in side.features)]

    @property
    def conversions(self) -> Conversions:
        """Changes that the log needs."""
        columns = (self.time, self.user, self.item)
        guesses: list[ColumnGuess | TaskGuess | FeatureGuess] = [*columns, *self.tasks, *self.features]
        converted = {guess.column: guess.convert for guess in guesses if guess.convert is not None}
        return Conversions(converted, {guess.column: guess.make for guess in columns if guess.make is not None})

    def to_schema(self) -> dict[str, Any]:
        """Return ``columns``, ``features`` and ``tasks`` of the configuration."""
        roles = {role: getattr(self, role) for role in ("time", "user", "item", "request", "weight")}
        taken: set[str] = set()
        features = []
        for feature in self.all_features:
            name = identifier(feature.column, taken)
            column = {"column": feature.column} if name != feature.column else {}
            entry = {"name": name, **column, "kind": feature.kind, "owner": feature.owner.owner, **feature.options}
            features.append(entry)
        tasks = []
        for task in self.tasks:
            name = identifier(task.column.removeprefix("is_"), taken)
            label = {"label": task.column} if name != task.column else {}
            tasks.append({"name": name, "kind": task.kind, **label, **task.options})
        columns = {role: guess.column for role, guess in roles.items() if guess is not None}
        return {"columns": columns, "features": features, "tasks": tasks}


def guess_roles(
    source: Source, tables: dict[Owner, Source], overrides: Overrides, rejected: Sequence[LeftOut] = ()
) -> Roles:
    """Guess the role of every column.

    Args:
        source: the log.
        tables: tables of users and items.
        overrides: columns that are not guessed.
        rejected: times with too few different values, which get no role.

    Raises:
        LogError: there is no label or no feature, or an override does not fit; names the option that helps.
    """
    columns = profile_columns(source.sample.rows)
    _check_overrides(columns, overrides, source.location)
    options = (overrides.time, overrides.user, overrides.item, *overrides.labels)
    named = {name for name in options if name is not None}
    user = guess_user(columns, named, overrides.user)
    item = guess_item(columns, named | {user.column}, overrides.item)
    ids: dict[Owner, str | None] = {
        "user": None if user.make else user.column,
        "item": None if item.make else item.column,
    }
    owners = OwnerGuesser(columns, ids["user"], ids["item"], None)
    few = [column.column for column in rejected]
    taken = {user.column, item.column, *overrides.labels, *few}
    time = guess_time(columns, taken, owners.is_attribute, overrides.time, few)
    taken.add(time.column)
    request = guess_request(columns, taken)
    taken |= set() if request is None else {request.column}
    free = {name: column for name, column in columns.items() if name not in taken}
    weight = guess_weight(free, owners.is_attribute)
    taken |= set() if weight is None else {weight.column}
    if overrides.labels:
        tasks = require_labels(columns, overrides.labels)
        free = {name: column for name, column in free.items() if name not in taken}
        others, left_out = find_outcomes(free, owners.is_attribute)
        reason = "by its name another label, known only after the impression; --label does not name it"
        left_out += [LeftOut(other.column, reason, leak=True) for other in others]
    else:
        tasks, left_out = guess_labels(columns, taken, owners.is_attribute)
    left_out += rejected
    taken |= {task.column for task in tasks} | {column.column for column in left_out}
    owners = OwnerGuesser(columns, ids["user"], ids["item"], None if request is None else request.column)
    in_tables = {name: owner for owner, table in tables.items() for name in table.sample.rows.column_names}
    features, unusable = _features(columns, taken, ids, lambda name: _owner(name, in_tables, owners))
    left_out += unusable
    sides = _side_tables(source, tables, {"user": user, "item": item}, set(columns), features)
    roles = Roles(time, user, item, request, weight, tasks, features, left_out, sides)
    if all(feature.options.get("training_only") for feature in roles.all_features):
        reasons = "; ".join(f"'{column.column}': {column.reason}" for column in left_out[:5])
        raise LogError(f"{source.location}: no column can be a feature ({reasons or 'there are no other columns'})")
    return roles


def _features(
    columns: dict[str, ColumnProfile], taken: set[str], ids: dict[Owner, str | None], find_owner: FindOwner
) -> tuple[list[FeatureGuess], list[LeftOut]]:
    """Return the features of the log, ids first, and the columns that cannot be features."""
    guesses = [
        id_feature(columns[name], OwnerGuess(owner, f"the id of the {owner}", sure=True))
        for owner, name in ids.items()
        if name is not None
    ]
    guesses += [guess_feature(column, find_owner) for name, column in columns.items() if name not in taken]
    features = [guess for guess in guesses if isinstance(guess, FeatureGuess)]
    item = ids["item"]
    if item is not None:
        features = [_with_item_table(feature, columns, item, features) for feature in features]
    return features, [guess for guess in guesses if isinstance(guess, LeftOut)]


def _with_item_table(
    feature: FeatureGuess, columns: dict[str, ColumnProfile], item: str, features: list[FeatureGuess]
) -> FeatureGuess:
    """Return a list of item ids with the embeddings of the item ids, other features unchanged."""
    if feature.kind not in ("bag", "sequence") or feature.convert is not None:
        return feature
    lists, ids = columns[feature.column].values, columns[item].values
    if not any(other.column == item for other in features) or lists.type.value_type != ids.type:
        return feature
    elements = pc.unique(lists.drop_null().flatten()).drop_null()
    known = pc.is_in(elements, pc.unique(ids.drop_null()))
    if not len(elements) or pc.mean(known).as_py() < MIN_ITEMS:
        return feature
    taken: set[str] = set()
    names = {other.column: identifier(other.column, taken) for other in features}
    options = {key: value for key, value in feature.options.items() if key != "dim"} | {"table": names[item]}
    return replace(feature, reason=f"{feature.reason}; the elements are item ids", options=options)


def _side_tables(
    source: Source,
    tables: dict[Owner, Source],
    ids: dict[Owner, ColumnGuess],
    columns: set[str],
    features: list[FeatureGuess],
) -> list[SideTable]:
    shared = {feature.column: feature.convert for feature in features}
    sides = []
    for owner, table in tables.items():
        if ids[owner].make is not None:
            raise LogError(
                f"{source.location}: has no column of {owner} ids for {table.location}; name it with --{owner}"
            )
        side = guess_side_table(table, owner, ids[owner].column, columns - shared.keys(), shared)
        shared |= {feature.column: feature.convert for feature in side.features}
        sides.append(side)
    return sides


def _owner(name: str, in_tables: dict[str, Owner], owners: OwnerGuesser) -> OwnerGuess:
    if name in in_tables:
        return OwnerGuess(in_tables[name], f"column of the {in_tables[name]}s table", sure=True)
    return owners.guess(name)


def _check_overrides(columns: dict[str, ColumnProfile], overrides: Overrides, location: str) -> None:
    options = [("--time", overrides.time), ("--user", overrides.user), ("--item", overrides.item)]
    options += [("--label", label) for label in overrides.labels]
    seen: dict[str, str] = {}
    for option, name in options:
        if name is None:
            continue
        if not name or name not in columns:
            raise LogError(f"{option} {name}: {location} has no such column; choose from {', '.join(columns)}")
        if name in seen:
            raise LogError(f"{option} {name}: {seen[name]} names this column too; name different columns")
        seen[name] = option
