"""Guess of the kind of each feature."""

from __future__ import annotations

import re
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.init.column_profile import ColumnProfile
from pipelines.init.conversions import Convert, finite_numbers, split_text, without_value
from pipelines.init.guesses import FeatureGuess, FindOwner, LeftOut, OwnerGuess
from pipelines.init.names import (
    AMOUNT_WORDS,
    CALENDAR,
    CATEGORIES,
    EXAMPLE_WEIGHTS,
    POSITIONS,
    SEQUENCES,
    TIME_WORDS,
    squeezed,
    words,
)
from pipelines.init.time_column import read_as_time

MAX_CODES = 30
"""Integers with at most this many distinct values are categories unless their name says otherwise."""
MANY_ZEROS = 0.5
"""Integers of which more than this share is 0 are more likely amounts than codes."""
MIN_ROWS_PER_VALUE = 2.0
"""Text with fewer rows per distinct value is free text."""
MAX_FREE_TEXT = 0.1
"""Text with spaces of which more than this share is distinct is free text."""
SEPARATORS = ("|", ";", ",")
MAX_PARTS = 0.9
"""Maximum number of distinct parts per distinct text; with more, a comma is part of the text."""
MIN_LISTS = 0.1
"""Minimum share of texts with a separator, for the column to hold lists."""
SKEWED = 10.0
"""A number whose 99 % quantile is this many times its median is used as its logarithm."""
HEAVY_TAIL = 50.0
"""A number with outliers on both sides, this many times the usual distance from the median, is divided into buckets."""
BUCKETS = 20
MIN_IDS, MIN_ROWS_PER_ID = 500, 5
"""Integers with more distinct values, each of them in several rows, may be ids."""
MAX_POSITION = 1000
MAX_NUMBER = 1e18
"""Largest number whose square is far below the limit of float32."""
DIMS = ((10, 4), (100, 8))
"""Widths of the embeddings of features with at most this many distinct values; others have the default."""


def guess_feature(column: ColumnProfile, find_owner: FindOwner) -> FeatureGuess | LeftOut:
    """Return the feature that a column becomes, or the reason why it is left out.

    Args:
        column: the column.
        find_owner: returns the owner of a column.
    """
    reason = _unusable(column)
    if reason is not None:
        return LeftOut(column.name, reason)
    owner = find_owner(column.name)
    if _is_position(column) and not owner.constant:
        return _position(column)
    if column.kind == "list":
        return _list(column, owner)
    if column.kind == "boolean":
        return FeatureGuess(column.name, "categorical", owner, "true or false", {"dim": 4})
    if column.kind == "text":
        return _text(column, owner)
    return _number(column, owner)


def id_feature(column: ColumnProfile, owner: OwnerGuess) -> FeatureGuess | LeftOut:
    """Return the feature of an id column, or the reason why ids cannot be a feature."""
    if column.known < 2 or column.distinct < 2:
        return LeftOut(column.name, "as a feature: one id only")
    if column.distinct > 0.95 * column.known:
        return LeftOut(column.name, "as a feature: ids do not repeat")
    return FeatureGuess(column.name, "categorical", owner, column.describe())


def _unusable(column: ColumnProfile) -> str | None:
    """Return why a column cannot be a feature; None if it can."""
    if not column.name.strip():
        return "the column has an empty name"
    if column.kind == "null":
        return "null in every row of the sample"
    if column.kind == "nested":
        return f"type {column.values.type}: write numbers, text, or lists of ids"
    if column.distinct < 2 and not column.nulls:
        value = str(column.values[0].as_py())
        return f"constant: {value:.40}"
    if read_as_time(column, named=bool(TIME_WORDS & set(words(column.name)))) is not None:
        return "a time: write a number that is known when serving instead, such as an age in days"
    if column.kind in ("text", "integer") and column.unique and (column.kind == "text" or _is_counter(column)):
        return "a different value in every row"
    if squeezed(column.name) in EXAMPLE_WEIGHTS:
        return "a sample weight by its name: [columns] weight names one column of the log with numbers ≥ 0"
    if column.kind in ("integer", "number") and len(column.finite) < 2:
        return "NaN or infinite in nearly every row"
    if column.kind in ("integer", "number") and float(np.abs(column.finite).max()) > MAX_NUMBER:
        return f"numbers beyond {MAX_NUMBER:g}; write them in another unit, or ids as text"
    return None


def _is_counter(column: ColumnProfile) -> bool:
    """Return whether integers that are all different look like an id or a row number."""
    steps = np.diff(column.finite)
    return bool({"id", "index", "row", "idx", "uuid", "no"} & set(words(column.name)) or np.all(steps > 0))


def _is_position(column: ColumnProfile) -> bool:
    if squeezed(column.name) not in POSITIONS or column.kind != "integer" or not len(column.finite):
        return False
    return column.finite.min() in (0, 1) and column.finite.max() <= MAX_POSITION


def _position(column: ColumnProfile) -> FeatureGuess:
    return FeatureGuess(
        column.name,
        "categorical",
        OwnerGuess("context", "unknown before the items are ranked", sure=True),
        f"a display position, by its name; {column.describe()}",
        {"dim": 4, "training_only": True},
        "could also be a feature that is known before ranking",
    )


def _list(column: ColumnProfile, owner: OwnerGuess) -> FeatureGuess | LeftOut:
    lists = column.values.drop_null()
    values = ColumnProfile(column.name, pa.chunked_array([lists.flatten()]))
    if values.distinct < 2:
        return LeftOut(column.name, "lists without two different elements")
    found = f"lists with {values.distinct:,} distinct elements"
    if SEQUENCES & set(words(column.name)):
        return FeatureGuess(
            column.name, "sequence", owner, f"{found}; by its name in order of time", {}, "is the newest element last?"
        )
    return FeatureGuess(column.name, "bag", owner, found, _dim(values.distinct))


def _text(column: ColumnProfile, owner: OwnerGuess) -> FeatureGuess | LeftOut:
    separator = _separator(column)
    if separator is not None:
        convert = split_text(separator)
        parts = convert(column.values)
        distinct = len(set(chain.from_iterable(part for part in parts.to_pylist() if part)))
        sequence = bool(SEQUENCES & set(words(column.name)))
        return FeatureGuess(
            column.name,
            "sequence" if sequence else "bag",
            owner,
            f'text split at "{separator}" into lists; {distinct:,} distinct elements',
            {} if sequence else _dim(distinct),
            "is the newest element last?" if sequence else None,
            convert,
        )
    repeated = column.known / max(column.distinct, 1)
    spaces = np.mean([" " in str(text) for text, _ in column.counts()[:1000]])
    if repeated < MIN_ROWS_PER_VALUE or (spaces > 0.5 and column.distinct > max(50, MAX_FREE_TEXT * column.known)):
        return LeftOut(column.name, f"free text: {column.describe()} in {column.rows:,} rows")
    return FeatureGuess(column.name, "categorical", owner, column.describe(), _dim(column.distinct))


def _separator(column: ColumnProfile) -> str | None:
    """Return the separator of text that holds lists; None for other text.

    The parts of lists repeat: there are fewer distinct parts than distinct texts.
    """
    texts = [str(text) for text, _ in column.counts()[:20_000]]
    blank = [" "] if SEQUENCES & set(words(column.name)) else []
    for separator in (*SEPARATORS, *blank):
        lists = [re.split(re.escape(separator), text) for text in texts]
        with_several = sum(len(parts) > 1 for parts in lists)
        if with_several < max(3, MIN_LISTS * len(texts)):
            continue
        parts = {part.strip() for part in chain.from_iterable(lists)}
        limit = len(texts) if separator == "|" else MAX_PARTS * len(texts)
        if len(parts) <= limit or separator == " ":
            return separator
    return None


def _number(column: ColumnProfile, owner: OwnerGuess) -> FeatureGuess:
    numbers, parts = column.finite, set(words(column.name))
    convert: Convert | None = None
    notes = []
    if column.kind == "integer" and not column.not_finite and not pa.types.is_decimal(column.values.type):
        few = column.distinct <= MAX_CODES
        codes = parts & (CATEGORIES if few else CATEGORIES - CALENDAR)
        if (few or codes) and (not parts & AMOUNT_WORDS or column.distinct <= 2):
            zeros = np.mean(numbers == 0)
            unsure = None
            if not few and zeros > MANY_ZEROS and "id" not in parts:
                unsure = f"could also be numeric: {zeros:.0%} are 0"
            elif not codes and column.distinct > 10:
                unsure = "could also be numeric"
            reason = f"integers with {column.describe()}"
            return FeatureGuess(column.name, "categorical", owner, reason, _dim(column.distinct), unsure)
    if column.not_finite:
        convert = finite_numbers
        notes.append(f"NaN or infinite in {column.not_finite:,} rows, converted to null")
    negative = np.unique(numbers[numbers < 0])
    if len(negative) == 1 and column.distinct > 10:
        share = np.mean(numbers == negative[0])
        convert = without_value(float(negative[0]))
        notes.append(f"the only negative value {negative[0]:g} ({share:.1%}) is converted to null")
        numbers = numbers[numbers >= 0]
    low, middle, high = np.quantile(numbers, [0, 0.5, 0.99])
    notes.insert(0, f"{low:g} to {numbers.max():g}, median {middle:g}" + _null_share(column))
    options: dict[str, Any] = {}
    kind = "numeric"
    spread = np.quantile(np.abs(numbers - middle), [0.5, 0.99])
    if low >= 0:
        if high > SKEWED * max(middle, 1e-9) or (numbers.max() > 100 * max(middle, 1e-9)):
            options["transform"] = "log1p"
            notes.append("skewed")
    elif spread[1] > HEAVY_TAIL * max(spread[0], 1e-12) and len(np.unique(numbers)) > BUCKETS:
        kind, options = "buckets", {"count": BUCKETS, "dim": 8}
        notes.append("outliers")
    ids = column.kind == "integer" and MIN_IDS < column.distinct < column.known / MIN_ROWS_PER_ID
    unsure = "could also be ids (categorical)" if ids and not parts & AMOUNT_WORDS else None
    if squeezed(column.name) == "weight" and not owner.constant:
        unsure = "could also be the sample weight ([columns] weight)"
    return FeatureGuess(column.name, kind, owner, "; ".join(notes), options, unsure, convert)


def _null_share(column: ColumnProfile) -> str:
    return f", {column.nulls / column.rows:.1%} null" if column.nulls else ""


def _dim(distinct: int) -> dict[str, Any]:
    """Return the width of an embedding as options; none for the default width."""
    return next(({"dim": dim} for limit, dim in DIMS if distinct <= limit), {})
