"""Tables as aligned lines of text."""

from __future__ import annotations

from collections.abc import Iterable

UNDEFINED = "–"
TASKS_PER_TABLE = 9
"""Maximum number of task columns in a table, so that it fits a terminal."""


def align_columns(rows: Iterable[list[str]], left: tuple[int, ...] = (0,)) -> list[str]:
    """Format rows as lines: columns as wide as their widest cell, two spaces apart, ``left`` ones left-aligned."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{width}}" if i in left else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
