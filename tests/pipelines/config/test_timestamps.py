"""Moments as ranker.toml and the run folder's config.toml write them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

import pytest

from pipelines.config.timestamps import parse_timestamp


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (date(2026, 1, 9), datetime(2026, 1, 9)),
        (datetime(2026, 1, 9, 6, tzinfo=UTC), datetime(2026, 1, 9, 6, tzinfo=UTC)),
        ("2026-01-09", datetime(2026, 1, 9)),
        ("2026-01-09T06:00:00", datetime(2026, 1, 9, 6)),
        ("2026-01-09T06:00:00Z", datetime(2026, 1, 9, 6, tzinfo=UTC)),
    ],
)
def test_is_a_date_or_a_date_with_a_time(written: Any, expected: datetime) -> None:
    assert parse_timestamp(written) == expected


@pytest.mark.parametrize("written", [1_767_916_800, 1.5, True, "soon", "1767916800", time(6), [], {}])
def test_is_nothing_else(written: Any) -> None:
    with pytest.raises(ValueError, match="must be a date or a moment"):
        parse_timestamp(written)
