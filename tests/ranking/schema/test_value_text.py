"""Values in messages have no Python syntax."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

import pytest

from ranking.schema.value_text import MAX_LENGTH, value_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (7, "7"),
        (0.5, "0.5"),
        (float("nan"), "nan"),
        ("a b", "'a b'"),
        (date(2026, 1, 9), "2026-01-09"),
        (datetime(2026, 1, 9, 6, tzinfo=UTC), "2026-01-09T06:00:00+00:00"),
        (time(6), "06:00:00"),
        ({"items": [1, 2]}, "a table"),
        ([], "[]"),
        ((1, "a", None, False, date(2026, 1, 9)), "[1, 'a', null, false, 2026-01-09]"),
        ([{"a": 1}, [{}]], "[a table, [a table]]"),
        ("a" * 100, "'" + "a" * (MAX_LENGTH - 1)),
        (["a" * 100] * 2, f"['{'a' * (MAX_LENGTH - 3)}]"),
    ],
)
def test_value_text(value: Any, text: str) -> None:
    assert value_text(value) == text


def test_value_text_of_json_names_objects() -> None:
    assert value_text([{"a": 1}], "an object") == "[an object]"


def test_deep_lists_are_cut() -> None:
    value: object = 1
    for _ in range(10_000):
        value = [value] * 20
    assert value_text(value) == ("[" * 4 + "[…], " * 20)[:59] + "]"
