"""Guess of a whole configuration: roles, splits, label ranges and sizes that fit the converted rows of a log."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from pipelines.console import print_status
from pipelines.data.dated_table import feature_table
from pipelines.data.dedup import DuplicateFilter
from pipelines.data.log_schema import bad_row_reasons, masked_labels
from pipelines.data.splits import local_microseconds
from pipelines.init.guesses import FeatureGuess, LeftOut, TaskGuess
from pipelines.init.leakage import suspicious_features
from pipelines.init.roles import Overrides, Roles, guess_roles
from pipelines.init.sizes import TrainingSizes, choose_sizes
from pipelines.init.source import Source
from pipelines.init.splits import Labels, Splits, choose_splits
from pipelines.inspection.label_bounds import default_bounds
from ranking.encoding.columns import holds_integers
from ranking.encoding.feature_table import FeatureTable, fill_features
from ranking.errors import InvalidInputError, LogError
from ranking.schema import Owner, Schema
from ranking.schema.validation_errors import format_validation_error

Mask = npt.NDArray[np.bool_]

MIN_ROWS = 20
"""Minimum number of usable rows of a log."""
MAX_BAD_ROWS = 0.5
"""A log with a larger share of unusable rows is rejected."""
TOLERATED_BAD_ROWS = 0.005
"""Up to this share of unusable rows, the default of ``logs.max_bad_rows`` is kept."""


@dataclass(frozen=True)
class Plan:
    """Content of a configuration with the reason of each guess.

    Attributes:
        source: the log.
        roles: roles of the columns.
        splits: bounds of the splits.
        sizes: sizes of the training.
        bad_rows: share of the sample per reason why rows are unusable.
        matches: share of the sampled rows whose id is in the table, by owner.
    """

    source: Source
    roles: Roles
    splits: Splits
    sizes: TrainingSizes
    bad_rows: dict[str, float]
    matches: dict[Owner, float]

    @property
    def copied(self) -> bool:
        """Whether training reads a copy of the log."""
        return self.source.is_csv or bool(self.roles.conversions)

    @property
    def max_bad_rows(self) -> float | None:
        """Value of ``logs.max_bad_rows``; None for the default."""
        share = sum(self.bad_rows.values())
        return min(1.0, math.ceil(200 * share) / 100) if share > TOLERATED_BAD_ROWS else None


def make_plan(source: Source, tables: dict[Owner, Source], overrides: Overrides) -> Plan:
    """Guess a configuration.

    Args:
        source: the log.
        tables: tables of users and items.
        overrides: columns that are not guessed.

    Raises:
        LogError: no configuration can be trained on this log; says why, and which option helps.
    """
    location, rejected = source.location, list[LeftOut]()
    while True:
        roles = guess_roles(source, tables, overrides, rejected)
        rows, schema, matches = _convert(source, roles)
        reasons = bad_row_reasons(rows, schema, labels=True)
        bad_rows = _bad_rows(reasons, location)
        usable = reasons.is_null().to_numpy(zero_copy_only=False)
        usable &= DuplicateFilter().first_seen(roles.conversions.apply(source.sample.rows, source.sample.positions))
        if usable.sum() < MIN_ROWS:
            raise LogError(f"{location}: has {usable.sum():,} usable rows; at least {MIN_ROWS} are needed")
        splits = _splits(rows, usable, roles, schema)
        if splits is not None or roles.time.make is not None:
            break
        name = roles.time.column
        if overrides.time is not None:
            raise LogError(f"--time {name}: has too few different times for three splits; leave out --time")
        rejected.append(LeftOut(name, "a time with too few different values to divide the rows by"))
    if splits is None:
        raise LogError(f"{location}: the rows cannot be divided into three splits; at least {MIN_ROWS} are needed")
    train = usable & _before(rows, schema, splits)
    roles = _learnable(roles, rows, schema, train, overrides)
    roles = _bounded(roles, rows, schema, train)
    schema = _schema(roles, location)
    roles = _without_leaks(roles, rows.filter(pa.array(train)), schema)
    sizes = choose_sizes(int(train.mean() * source.sample.total))
    return Plan(source, roles, splits, sizes, bad_rows, matches)


def _convert(source: Source, roles: Roles) -> tuple[pa.Table, Schema, dict[Owner, float]]:
    """Return the sample as training reads it, its schema, and the share of its ids that are in the side tables."""
    schema = _schema(roles, source.location)
    converted = roles.conversions.apply(source.sample.rows, source.sample.positions)
    tables: dict[Owner, FeatureTable] = {}
    matches: dict[Owner, float] = {}
    for side in roles.sides:
        where = side.source.location
        try:
            table = feature_table(side.read(), schema, side.owner)
            ids = converted[table.key].combine_chunks()
            if pa.types.is_integer(ids.type) and len(table) and not holds_integers(table.ids):
                example = table.ids[0].as_py()
                raise LogError(
                    f"{where}: column '{table.key}' holds text such as {example!r:.40}, but the log has integers: "
                    "write the same ids in both"
                )
            matches[side.owner] = float(table.contains(ids).mean())
        except InvalidInputError as error:
            raise LogError(f"{where}: column {error}") from None
        tables[side.owner] = table
    try:
        return fill_features(converted, schema, tables), schema, matches
    except InvalidInputError as error:
        raise LogError(f"{source.location}: column {error}") from None


def _schema(roles: Roles, location: str) -> Schema:
    data = {"name": "ranker", **roles.to_schema()}
    try:
        return Schema.model_validate(data)
    except ValidationError as error:
        raise LogError(f"{location}: {format_validation_error(error, data)}") from None


def _bad_rows(reasons: pa.Array, location: str) -> dict[str, float]:
    counts = {entry["values"].as_py(): entry["counts"].as_py() for entry in pc.value_counts(reasons.drop_null())}
    shares = {reason: count / len(reasons) for reason, count in sorted(counts.items(), key=lambda pair: -pair[1])}
    if sum(shares.values()) > MAX_BAD_ROWS:
        reason = next(iter(shares))
        raise LogError(f"{location}: {sum(shares.values()):.0%} of the rows are unusable, most because {reason}")
    return shares


def _splits(rows: pa.Table, usable: Mask, roles: Roles, schema: Schema) -> Splits | None:
    rows = rows.filter(pa.array(usable))
    times = rows[schema.columns.time]
    labels = [_labels(rows, schema, index) for index, task in enumerate(roles.tasks) if task.kind == "binary"]
    return choose_splits(local_microseconds(times), labels, dates=pa.types.is_date(times.type))


def _before(rows: pa.Table, schema: Schema, splits: Splits) -> Mask:
    """Return whether each row [rows] is in the training split."""
    times = rows[schema.columns.time]
    known = times.is_valid().combine_chunks().to_numpy(zero_copy_only=False)
    result = np.zeros(len(known), np.bool_)
    result[known] = local_microseconds(times.drop_null()) < np.datetime64(splits.validation_from, "us").astype(np.int64)
    return result


def _labels(rows: pa.Table, schema: Schema, index: int) -> Labels:
    labels: Labels = masked_labels(rows, schema.tasks[index]).to_numpy(zero_copy_only=False)
    return labels


def _learnable(roles: Roles, rows: pa.Table, schema: Schema, train: Mask, overrides: Overrides) -> Roles:
    """Remove the tasks whose label has one value in the training split."""
    kept, left = [], []
    for index, task in enumerate(roles.tasks):
        labels = _labels(rows, schema, index)[train]
        if len(np.unique(labels[~np.isnan(labels)])) > 1:
            kept.append(task)
        elif overrides.labels:
            raise LogError(f"--label {task.column}: has one value in the training split; leave it out")
        else:
            left.append(LeftOut(task.column, "a label with one value in the training split"))
    if not kept:
        names = ", ".join(f"'{column.column}'" for column in left)
        raise LogError(f"no label has two values in the training split ({names}): name another one with --label COLUMN")
    return replace(roles, tasks=kept, left_out=[*roles.left_out, *left])


def _bounded(roles: Roles, rows: pa.Table, schema: Schema, train: Mask) -> Roles:
    """Set the range of each regression whose labels the estimated range would exclude."""
    tasks: list[TaskGuess] = []
    by_label = {task.label: task for task in schema.tasks}
    for guess in roles.tasks:
        task = by_label[guess.column]
        if task.kind == "regression":
            labels = masked_labels(rows, task).to_numpy(zero_copy_only=False)
            known = labels[~np.isnan(labels)]
            low, high = default_bounds(task, labels[train])
            if np.any(known < (-np.inf if low is None else low)) or np.any(known > (np.inf if high is None else high)):
                low, high = task.label_range
                limits = {"min": float(max(known.min(), low)), "max": float(min(known.max(), high))}
                guess = replace(guess, options={**guess.options, **limits})
        tasks.append(guess)
    return replace(roles, tasks=tasks)


def _without_leaks(roles: Roles, rows: pa.Table, schema: Schema) -> Roles:
    """Remove the features that can only be copies of a label, and mark those that predict a label very well."""
    left: dict[str, LeftOut] = {}
    marks: dict[str, str] = {}
    ids = {roles.user.column, roles.item.column}
    for found in suspicious_features(rows, schema):
        column = found.feature.column
        evidence = f"alone predicts '{found.task.label}' with {found.measure} {found.strength:.3f}"
        if found.is_copy and column not in ids:
            left.setdefault(column, LeftOut(column, f"{evidence}: known only after the impression?", leak=True))
        else:
            marks.setdefault(column, f"{evidence}; is it known before the impression?")

    def judged(features: list[FeatureGuess]) -> list[FeatureGuess]:
        kept = (feature for feature in features if feature.column not in left)
        return [replace(f, unsure=marks[f.column]) if f.column in marks else f for f in kept]

    sides = []
    for side in roles.sides:
        gone = [left[feature.column] for feature in side.features if feature.column in left]
        sides.append(replace(side, features=judged(side.features), left_out=[*side.left_out, *gone]))
    own = [left[feature.column] for feature in roles.features if feature.column in left]
    result = replace(roles, features=judged(roles.features), sides=sides, left_out=[*roles.left_out, *own])
    if all(feature.options.get("training_only") for feature in result.all_features):
        print_status("warning: every feature predicts a label almost perfectly; all are kept, check each of them")
        marks |= {column: found.reason for column, found in left.items()}
        left.clear()
        kept_sides = [replace(side, features=judged(side.features)) for side in roles.sides]
        return replace(roles, features=judged(roles.features), sides=kept_sides)
    return result
