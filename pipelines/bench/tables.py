"""Measurements as Markdown, and a document of which each benchmark writes its own part."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path


def replace_part(file: Path, name: str, text: str) -> None:
    """Puts a benchmark's results where its earlier ones stood in a document, or at the end; the rest stays.

    Args:
        file: the document; made if it is not there.
        name: of the part, which comments that Markdown does not show mark off.
        text: the results.
    """
    first, last = f"<!-- {name}: measured -->\n", f"<!-- {name}: end -->\n"
    whole = file.read_text() if file.exists() else "# Benchmarks\n"
    before, found, after = whole.partition(first)
    if not found:
        before += "\n"
    file.write_text(before + first + "\n" + text + "\n" + last + after.partition(last)[2])


def section(title: str, how: str, header: Sequence[str], lines: Iterable[Sequence[str]], below: str = "") -> str:
    """A heading, a sentence and a table."""
    table = [header, ["---"] * len(header), *lines]
    body = "\n".join("| " + " | ".join(line) + " |" for line in table)
    return f"### {title}\n\n{how}\n\n{body}\n" + (f"\n{below}\n" if below else "")


def spread(values: Sequence[float], how: str) -> str:
    """Median, lowest and highest."""
    median = format(statistics.median(values), how)
    return median if len(values) == 1 else f"{median} ({format(min(values), how)} – {format(max(values), how)})"


def three_digits(number: float) -> str:
    """A number in so many digits that count, whole from a thousand on."""
    return f"{number:,.0f}" if number >= 999.5 else f"{number:.3g}"


def cores(threads: int) -> str:
    """What each process had."""
    return f"{threads} thread{'s' if threads > 1 else ''} on as many cores"
