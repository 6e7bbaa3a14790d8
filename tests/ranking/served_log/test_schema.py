"""The time zone of this machine, which served files name."""

from __future__ import annotations

import pytest

from ranking.served_log.schema import local_zone


@pytest.mark.parametrize(
    ("variable", "expected"), [("Europe/Berlin", "Europe/Berlin"), (":Asia/Tokyo", "Asia/Tokyo"), ("CET-1CEST", None)]
)
def test_local_zone_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, expected: str | None
) -> None:
    monkeypatch.setenv("TZ", variable)
    assert local_zone() == expected
