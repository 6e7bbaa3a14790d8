from __future__ import annotations

from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pytest

from pipelines.init.column_profile import profile_columns
from pipelines.init.guesses import ColumnGuess
from pipelines.init.time_column import guess_time
from ranking.errors import LogError

SECONDS = [1_767_225_600 + 3600 * i for i in range(30)]


def guess(columns: dict[str, Any], override: str | None = None, attributes: tuple[str, ...] = ()) -> ColumnGuess:
    return guess_time(profile_columns(pa.table(columns)), (), lambda name: name in attributes, override)


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("ts", SECONDS, "Unix time in s"),
        ("time_ms", [1000 * s for s in SECONDS], "Unix time in ms"),
        ("timestamp", [float(s) for s in SECONDS], "Unix time in s"),
        ("whenever", [datetime(2026, 1, 1, i % 24) for i in range(30)], "timestamp[us]"),
        ("event_time", ["2026-01-01T10:00:00"] * 30, "ISO 8601 text"),
        ("day", [20260101 + i for i in range(30)], "numbers such as 20260109"),
        ("date", [date(2026, 1, 1 + i) for i in range(30)], "date32"),
        ("visited", [f"{1 + i}.1.2026" for i in range(30)], "dd.mm.yyyy text"),
        ("date", [f"{1 + i:02}.01.2026" for i in range(12)], "dd.mm.yyyy text"),
        ("date", [f"{1 + i:02}/01/2026 10:00" for i in range(30)], "dd/mm/yyyy text"),
        ("InvoiceDate", [f"1/{1 + i}/2026 9:05" for i in range(30)], "mm/dd/yyyy text"),
    ],
)
def test_guess_time_reads_every_form(name: str, values: list[Any], reason: str) -> None:
    time = guess({"n": list(range(len(values))), name: values})
    assert (time.column, time.reason[: len(reason)]) == (name, reason)


def test_guess_time_prefers_times_to_days_and_says_so() -> None:
    time = guess({"date": [20260101 + i for i in range(30)], "time_ms": [1000 * s for s in SECONDS]})
    assert (time.column, time.unsure) == ("time_ms", "'date' could be the time too")


def test_guess_time_ignores_times_of_items_and_other_events() -> None:
    times = [datetime(2020, 1, 1 + i) for i in range(30)]
    assert guess({"published": times}, attributes=("published",)).make is not None
    assert guess({"release_time": times, "time": times}).column == "time"


def test_guess_time_of_numbers_needs_a_name() -> None:
    time = guess({"number": SECONDS})
    assert time.make is not None
    assert time.column == "row_time"


@pytest.mark.parametrize("values", [["03/04/2026", "12/11/2026"], ["01 3, 2014", "02 13, 2014"]])
def test_guess_time_names_the_column_that_it_cannot_read(values: list[str]) -> None:
    time = guess({"n": [1, 2], "visit_date": values})
    assert time.make is not None
    assert time.unsure == (
        f"rows are divided at random, not by time: 'visit_date' holds text such as '{values[0]}'; write ISO 8601 text"
    )


def test_guess_time_does_not_replace_a_column() -> None:
    assert guess({"row_time": ["x"] * 30}).column == "_row_time"


def test_guess_time_override_that_holds_no_times_is_rejected() -> None:
    with pytest.raises(LogError, match=r"--time n: holds values such as 0, which are neither timestamps"):
        guess({"n": list(range(30))}, "n")
    assert guess({"n": SECONDS}, "n").reason.startswith("--time; Unix time in s")
