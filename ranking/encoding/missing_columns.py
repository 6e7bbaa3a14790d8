"""Columns that scoring needs but that neither a table nor the side tables have."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from ranking.schema import Owner, Schema


def missing_feature_columns(
    schema: Schema, names: Collection[str], side_columns: Mapping[Owner, Collection[str]]
) -> dict[str, str]:
    """Return the missing columns, each with its role in the schema.

    Columns of counters and histories are computed and therefore never missing. A side table provides a column only if
    the table to score has the ids of its owner.

    Args:
        schema: the features.
        names: columns of the table to score.
        side_columns: columns of each side table.
    """
    missing: dict[str, str] = {}
    counter_columns = schema.counter_columns
    for feature in schema.inputs:
        id_column = schema.id_column(feature.owner)
        if feature.column in names or feature.column in counter_columns:
            continue
        if (
            id_column is None
            or feature.column == id_column
            or feature.column not in side_columns.get(feature.owner, ())
        ):
            missing[feature.column] = f"feature '{feature.name}'"
        elif id_column not in names:
            missing.setdefault(id_column, f"the {feature.owner} id, with which features are looked up")
    return missing


def describe_missing(missing: Mapping[str, str]) -> str:
    """Return missing columns with their roles as the start of a message."""
    which = ", ".join(f"column '{column}' ({role})" for column, role in missing.items())
    return f"{which} {'is' if len(missing) == 1 else 'are'} missing"


def suggest_column(missing: Collection[str], names: Collection[str]) -> str:
    """Return the rest of the message: a column with a similar name, or all columns of the table."""
    similar = difflib.get_close_matches(next(iter(missing)), names, 1) if len(missing) == 1 else []
    return f"; did you mean '{similar[0]}'?" if similar else f" (found: {', '.join(sorted(names)) or 'no columns'})"
