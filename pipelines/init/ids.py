"""Guess of the columns of user ids, item ids, requests and weights."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import pyarrow as pa

from pipelines.data.log_schema import MAX_WEIGHT
from pipelines.init.column_profile import ColumnProfile
from pipelines.init.conversions import nulls, row_numbers
from pipelines.init.guesses import ColumnGuess
from pipelines.init.names import EXAMPLE_WEIGHTS, ITEMS, PLAIN, REQUESTS, USERS, entity_rank, squeezed, words
from ranking.errors import LogError

MIN_ROWS_PER_REQUEST = 1.5
"""With fewer rows per distinct value, a column does not identify rows shown together."""
MAX_ROWS_PER_REQUEST = 1000
"""With more rows per distinct value, a column is a key of another kind."""
MIN_PLAIN_IDS = 50
"""Minimum number of distinct values of a column such as ``job``, whose name does not say that it is an id."""
MAX_NULLS = 0.5
"""A column with a larger share of nulls is not guessed to be the item id, which no row may lack."""
LARGEST_ID = 2.0**63
"""Unsigned integers from here on are not ids."""


def guess_user(columns: dict[str, ColumnProfile], taken: Collection[str], override: str | None) -> ColumnGuess:
    """Return the column of user ids; a column of nulls if there is none.

    Args:
        columns: profiles of all columns.
        taken: columns that have another role.
        override: name of the column; None to guess it.

    Raises:
        LogError: the column ``override`` cannot hold ids.
    """
    return _guess_by_name(columns, USERS, taken, override, "--user") or ColumnGuess(
        _new_name("user_id", columns),
        "a column of nulls, added to the copy",
        "no column is named like a user id, so every user is anonymous (--user COLUMN names one)",
        make=nulls,
    )


def guess_item(columns: dict[str, ColumnProfile], taken: Collection[str], override: str | None) -> ColumnGuess:
    """Return the column of item ids; the number of the row if there is none.

    Args:
        columns: profiles of all columns.
        taken: columns that have another role.
        override: name of the column; None to guess it.

    Raises:
        LogError: the column ``override`` cannot hold ids.
    """
    guess = _guess_by_name(columns, ITEMS, taken, override, "--item")
    if guess is not None:
        return guess
    others = [
        name
        for name, column in columns.items()
        if words(name)[-1:] == ["id"]
        and name not in taken
        and entity_rank(name, REQUESTS) is None
        and _holds_ids(column)
        and not column.nulls
        and 1 < column.distinct < 0.9 * column.rows
    ]
    if others:
        best = max(others, key=lambda name: columns[name].distinct)
        return ColumnGuess(
            best, f"the id with most values; {columns[best].describe()}", "no column is named like an item id"
        )
    return ColumnGuess(
        _new_name("item_id", columns),
        "the number of the row, added to the copy",
        "no column is named like an item id, so every row is an item of its own (--item COLUMN names one)",
        make=row_numbers,
    )


def guess_request(columns: dict[str, ColumnProfile], taken: Collection[str]) -> ColumnGuess | None:
    """Return the column that identifies rows shown together; None if there is none."""
    for name in _named(columns, REQUESTS, taken):
        column = columns[name]
        rows = column.known / column.distinct
        if MIN_ROWS_PER_REQUEST <= rows <= MAX_ROWS_PER_REQUEST:
            unsure = "a session may contain several requests" if "session" in squeezed(name) else None
            return ColumnGuess(name, f"by its name; {rows:.1f} rows per value", unsure)
    return None


def guess_weight(columns: dict[str, ColumnProfile], is_attribute: Callable[[str], bool]) -> ColumnGuess | None:
    """Return the column of sample weights; None if there is none."""
    weights = {name: column for name, column in columns.items() if _holds_weights(column)}
    for name, column in weights.items():
        if squeezed(name) in EXAMPLE_WEIGHTS:
            return ColumnGuess(name, f"by its name; mean {column.finite.mean():.3g}")
    for name, column in weights.items():
        mean = float(column.finite.mean())
        if squeezed(name) == "weight" and 0.01 <= mean <= 100 and not is_attribute(name):
            return ColumnGuess(name, f"by its name; mean {mean:.3g}", "could also be a feature, such as a weight in kg")
    return None


def _named(columns: dict[str, ColumnProfile], entities: list[str], taken: Collection[str]) -> list[str]:
    """Return the columns whose names fit an entity and that hold ids, the best first."""
    ranked = [
        (rank, index, name)
        for index, (name, column) in enumerate(columns.items())
        if name not in taken
        and (rank := entity_rank(name, entities)) is not None
        and _holds_ids(column)
        and (entities is not ITEMS or column.nulls <= MAX_NULLS * column.rows)
        and column.distinct >= (MIN_PLAIN_IDS if rank == PLAIN else 2)
    ]
    return [name for *_, name in sorted(ranked)]


def _guess_by_name(
    columns: dict[str, ColumnProfile], entities: list[str], taken: Collection[str], override: str | None, option: str
) -> ColumnGuess | None:
    """Return the column that an option names, or else the column whose name fits an entity best; None without one."""
    if override is not None:
        return _require_ids(columns[override], option)
    names = _named(columns, entities, taken)
    if not names:
        return None
    others = ", ".join(f"'{name}'" for name in names[1:4])
    reason = f"by its name; {columns[names[0]].describe()}"
    return ColumnGuess(names[0], reason, f"{others} could be the id too" if others else None)


def _holds_ids(column: ColumnProfile) -> bool:
    if pa.types.is_decimal(column.values.type):
        return False
    return column.kind == "text" or (column.kind == "integer" and bool(np.all(np.abs(column.finite) < LARGEST_ID)))


def _holds_weights(column: ColumnProfile) -> bool:
    if column.kind not in ("integer", "number") or pa.types.is_decimal(column.values.type):
        return False
    valid = np.all((column.finite >= 0) & (column.finite <= MAX_WEIGHT))
    return not column.not_finite and column.distinct > 1 and bool(valid)


def _require_ids(column: ColumnProfile, option: str) -> ColumnGuess:
    if not _holds_ids(column):
        raise LogError(f"{option} {column.name}: holds {column.values.type}: ids are integers or text")
    return ColumnGuess(column.name, f"{option}; {column.describe()}")


def _new_name(name: str, columns: dict[str, ColumnProfile]) -> str:
    while name in columns:
        name = f"row_{name}"
    return name
