"""Value types of ranker.toml."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

import pytest
from pydantic import ValidationError

from pipelines.config.types import Range, parse_timestamp


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (date(2026, 1, 9), datetime(2026, 1, 9)),
        (datetime(2026, 1, 9, 6, tzinfo=UTC), datetime(2026, 1, 9, 6, tzinfo=UTC)),
        ("2026-01-09", datetime(2026, 1, 9)),
        ("2026-01-09T06:00:00", datetime(2026, 1, 9, 6)),
        ("2026-01-09T06:00:00Z", datetime(2026, 1, 9, 6, tzinfo=UTC)),
    ],
)
def test_parse_timestamp_accepts_dates_timestamps_and_iso_text(value: Any, expected: datetime) -> None:
    assert parse_timestamp(value) == expected


@pytest.mark.parametrize("value", [1_767_916_800, 1.5, True, "soon", "1767916800", time(6), [], {}])
def test_parse_timestamp_rejects_other_values(value: Any) -> None:
    with pytest.raises(ValueError, match="must be a date or a timestamp"):
        parse_timestamp(value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "give low and high, or a list of choices"),
        ({"low": 1}, "give low and high"),
        ({"low": 2, "high": 1}, "low must be smaller than high"),
        ({"low": 0, "high": 1, "log": True}, "log needs low > 0"),
        ({"low": 0, "high": 1, "choices": [1]}, "either choices or low and high"),
        ([], "at least 1 item"),
        ({"low": 0, "high": 1, "step": 2}, "Extra inputs"),
    ],
)
def test_range_with_invalid_values_fails(values: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Range.model_validate(values)
