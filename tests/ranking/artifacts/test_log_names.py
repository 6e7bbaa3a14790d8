"""Names of the files of logs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranking.artifacts.log_names import FEEDBACK, PART_SUFFIX, SERVED, LogNames

KEYS = [None, "shop", "a-b.c@d_e-0123456789ab", "x.jsonl", "y.jsonl.part", "-"]


@pytest.mark.parametrize(("names", "key"), [(SERVED, None), *((FEEDBACK, key) for key in KEYS)])
def test_new_name_contains_the_time_and_the_key(names: LogNames, key: str | None) -> None:
    name = names.new(key)
    for text, finished in ((name, True), (name + PART_SUFFIX, False)):
        parsed = names.parse(text)
        assert parsed is not None
        assert (parsed.key, parsed.own, parsed.finished) == (key, True, finished)
        assert parsed.created is not None
        assert abs(parsed.created - datetime.now(UTC)).total_seconds() < 60


@pytest.mark.parametrize(
    ("name", "created", "own"),
    [
        ("served-20260110T090000Z-0123456789ab.parquet", datetime(2026, 1, 10, 9, tzinfo=UTC), True),
        ("served-20260110T090000Z-copied-by-hand.parquet", datetime(2026, 1, 10, 9, tzinfo=UTC), False),
        ("served-99999999T999999Z-0123456789ab.parquet", None, True),
        ("served-20260110T090000Z-0123456789ab-backup.parquet", datetime(2026, 1, 10, 9, tzinfo=UTC), False),
        ("served-20260110-0123456789ab.parquet", None, False),
        ("served-of-march.parquet", None, False),
    ],
)
def test_parse_of_foreign_names_returns_what_is_known(name: str, created: datetime | None, own: bool) -> None:
    parsed = SERVED.parse(name)
    assert parsed is not None
    assert (parsed.created, parsed.own) == (created, own)


@pytest.mark.parametrize("name", ["other.parquet", "served-1.jsonl", "served.parquet", "feedback-1.parquet", ""])
def test_parse_of_files_of_other_programs_returns_none(name: str) -> None:
    assert SERVED.parse(name) is None


TIMES = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1))


@given(TIMES, TIMES)
def test_names_sort_by_the_time_of_creation(first: datetime, second: datetime) -> None:
    starts = SERVED.start(min(first, second)), SERVED.start(max(first, second))
    assert starts == tuple(sorted(starts))
