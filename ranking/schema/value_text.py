"""Values as messages show them: as TOML and JSON write them, not as Python does."""

from __future__ import annotations

from datetime import date, time
from typing import Any

MAX_LENGTH = 60
"""Maximum number of characters; longer text is truncated."""
MAX_ENTRIES = 20
"""Number of entries of a list that are formatted at most."""
MAX_DEPTH = 3
"""Depth of a list within lists, below which its entries are not shown."""


def value_text(value: Any, table: str = "a table") -> str:
    """Return a value approximately as TOML or JSON writes it, truncated.

    Args:
        value: any value that TOML or JSON can hold.
        table: text that stands for a table of keys and values.
    """
    return _text(value, table, 0)


def _text(value: Any, table: str, depth: int) -> str:
    """Return the text of a value inside so many lists."""
    if isinstance(value, dict):
        return table
    if isinstance(value, list | tuple):
        if depth > MAX_DEPTH:
            return "[…]"
        entries = ", ".join(_text(entry, table, depth + 1) for entry in value[:MAX_ENTRIES])
        return f"[{entries[: MAX_LENGTH - 2]}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, date | time):
        return value.isoformat()
    return repr(value)[:MAX_LENGTH]
