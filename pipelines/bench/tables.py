"""Markdown tables of measurements. Needs the standard library only."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence


def section(title: str, caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], footnote: str = "") -> str:
    """Format a heading, a caption, a table and an optional footnote."""
    table = [header, ["---"] * len(header), *rows]
    body = "\n".join("| " + " | ".join(row) + " |" for row in table)
    return f"### {title}\n\n{caption}\n\n{body}\n" + (f"\n{footnote}\n" if footnote else "")


def spread(values: Sequence[float], spec: str) -> str:
    """Format the median, the lowest and the highest value with a format specification."""
    median = format(statistics.median(values), spec)
    return median if len(values) == 1 else f"{median} ({format(min(values), spec)} – {format(max(values), spec)})"


def three_digits(number: float) -> str:
    """Format a number with three significant digits, or as an integer from 1,000 on."""
    return f"{number:,.0f}" if number >= 999.5 else f"{number:.3g}"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun, such as "1 turn" or "3 turns"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def cores(threads: int) -> str:
    """Describe the resources of each measured process."""
    return f"{plural(threads, 'thread')} on {plural(threads, 'core')}"
