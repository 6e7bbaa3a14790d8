"""Guess of the time column, in any of the forms in which logs store times."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.init.column_profile import ColumnProfile
from pipelines.init.conversions import (
    EARLIEST,
    LATEST,
    UNIT_SECONDS,
    Convert,
    day_numbers,
    random_split_times,
    reordered_times,
    text_times,
    unix_times,
)
from pipelines.init.guesses import ColumnGuess
from pipelines.init.names import OTHER_TIMES, TIME_NAMES, TIME_WORDS, squeezed, words
from ranking.errors import LogError

READABLE = 0.99
"""Minimum share of values that must be times."""
MAX_NULLS = 0.5
"""A column with a larger share of nulls is not guessed to be the time."""
TESTED_TEXTS = 1000
"""Number of texts that are parsed to find out whether a column holds times."""
REORDERED = {
    "dd.mm.yyyy": reordered_times(".", day_first=True),
    "dd/mm/yyyy": reordered_times("/", day_first=True),
    "mm/dd/yyyy": reordered_times("/", day_first=False),
}
"""Forms of dates that do not start with the year. A column that two of them fit is not read."""
ARTIFICIAL = "row_time"
"""Name of the artificial time column of a log without times."""

UNNAMED = 4
"""Score of a column whose name does not suggest a time."""

Reading = tuple[str, Convert | None]
"""Reading of a column as times: a description, and the conversion."""


def guess_time(
    columns: dict[str, ColumnProfile],
    taken: Collection[str],
    is_attribute: Callable[[str], bool],
    override: str | None,
    rejected: Sequence[str] = (),
) -> ColumnGuess:
    """Return the time column; a column of artificial times if there is none.

    Args:
        columns: profiles of all columns.
        taken: columns that have another role.
        is_attribute: whether a column is constant per user or item, such as the day of the upload.
        override: name of the time column; None to guess it.
        rejected: columns of times, all taken, with too few different values.

    Raises:
        LogError: the values of ``override`` are not times.
    """
    if override is not None:
        reading = read_as_time(columns[override], named=True)
        if reading is None:
            sample = next((value for value, _ in columns[override].counts()), None)
            raise LogError(
                f"--time {override}: holds values such as {sample!r:.40}, which are neither timestamps, Unix times, "
                "ISO 8601 text nor dates with a clear order of day and month; convert the column, or leave out --time"
            )
        return ColumnGuess(override, f"--time; {reading[0]}", convert=reading[1])
    candidates: list[tuple[int, str, Reading]] = []
    for name, column in columns.items():
        if name in taken or column.nulls > MAX_NULLS * column.rows:
            continue
        score = _score(column)
        reading = read_as_time(column, named=score < UNNAMED)
        if reading is not None and not (score >= UNNAMED and is_attribute(name)):
            candidates.append((score + (2 if _is_day(column) else 0), name, reading))
    if not candidates:
        few = f"'{rejected[0]}' has too few different times" if rejected else None
        return artificial_time(few or _unread(columns, taken), columns)
    candidates.sort(key=lambda candidate: candidate[0])
    score, name, (reason, convert) = candidates[0]
    others = ", ".join(f"'{other}'" for _, other, _ in candidates[1:4])
    unsure = f"{others} could be the time too" if others else None
    if score >= UNNAMED:
        unsure = "chosen by its values, not by its name: is it the time of the impression?"
    return ColumnGuess(name, reason, unsure, convert)


def artificial_time(why: str, names: Collection[str]) -> ColumnGuess:
    """Return a time column that divides the rows at random into training, validation and test split.

    Args:
        why: why the log needs it.
        names: names of the other columns.
    """
    name = ARTIFICIAL
    while name in names:
        name = f"_{name}"
    return ColumnGuess(
        name,
        "artificial times, added to the copy (80 %, 10 %, 10 %)",
        f"rows are divided at random, not by time: {why}",
        make=random_split_times,
    )


def read_as_time(column: ColumnProfile, *, named: bool) -> Reading | None:
    """Return how a column is read as times; None if it does not hold times.

    Args:
        column: the column.
        named: whether its name suggests a time; only then are numbers read as times.
    """
    if column.kind == "time":
        return str(column.values.type), None
    if column.kind == "text":
        return _read_text(column)
    if not named or column.kind not in ("integer", "number") or not len(column.finite):
        return None
    days = column.finite
    if column.kind == "integer" and np.mean((days >= 19_850_101) & (days < 21_000_101)) >= READABLE:
        dates = day_numbers(column.values)
        if dates.null_count - column.nulls <= (1 - READABLE) * column.known:
            return "numbers such as 20260109, converted to dates", day_numbers
    for unit, seconds in UNIT_SECONDS.items():
        times = column.finite * seconds
        if np.mean((times >= EARLIEST.timestamp()) & (times < LATEST.timestamp())) >= READABLE:
            first, last = (datetime.fromtimestamp(bound, UTC).date() for bound in np.quantile(times, [0.01, 0.99]))
            return f"Unix time in {unit}, about {first} to {last}; converted to timestamps in UTC", unix_times(unit)
    return None


def _read_text(column: ColumnProfile) -> Reading | None:
    known = column.values.drop_null()
    texts = known.take(pa.array(np.linspace(0, len(known) - 1, min(len(known), TESTED_TEXTS)).astype(int))).to_pylist()
    dated = [text for text in texts if re.match(r"\s*\d{4}-\d{2}-\d{2}", text)]
    if len(dated) >= READABLE * len(texts):
        for zoned in (False, True):
            convert = text_times(zoned=zoned)
            if _reads(convert, texts):
                return f"ISO 8601 text, converted to timestamps{' in UTC' if zoned else ''}", convert
        return None
    readings = [
        (f"{form} text, converted to timestamps", convert)
        for form, convert in REORDERED.items()
        if _reads(convert, texts)
    ]
    return readings[0] if len(readings) == 1 else None


def _reads(convert: Convert, texts: Sequence[str]) -> bool:
    return bool(pc.sum(convert(pa.array(texts, pa.string())).is_valid()).as_py() >= READABLE * len(texts))


def _unread(columns: dict[str, ColumnProfile], taken: Collection[str]) -> str:
    """Return why no column holds times; names a text column that is named like a time."""
    for name, column in columns.items():
        if name not in taken and column.kind == "text" and _score(column) < UNNAMED:
            return f"'{name}' holds text such as {column.counts()[0][0]!r:.20}; write ISO 8601 text"
    return "no column holds times (--time COLUMN names one)"


def _score(column: ColumnProfile) -> int:
    """Return how little a name suggests the time of an impression: 0 for the best names, ``UNNAMED`` for others."""
    name, parts = squeezed(column.name), set(words(column.name))
    if parts & OTHER_TIMES:
        return UNNAMED + 2
    if name in TIME_NAMES:
        return 0
    return 1 if parts & TIME_WORDS else UNNAMED


def _is_day(column: ColumnProfile) -> bool:
    return pa.types.is_date(column.values.type) or set(words(column.name)) <= {"date", "day", "dt"}
