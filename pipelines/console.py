"""Progress and messages on stderr: a bar on a terminal, plain lines otherwise. Results are printed to stdout."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Self

from tqdm import tqdm

LINE_INTERVAL_SECONDS = 5.0
"""Minimum number of seconds between two progress lines without a terminal."""


def is_main_process() -> bool:
    """Return whether this process prints: of the ranks that torchrun starts, only the first does."""
    return os.environ.get("RANK", "0") == "0"


def print_status(message: str) -> None:
    """Print one line on stderr, above any progress bar; only the main process prints."""
    if is_main_process():
        tqdm.write(message, file=sys.stderr)


class Progress:
    """Counts work, and reports the count as a bar or as lines.

    Args:
        label: text before the count.
        unit: name of the counted unit.
        total: expected count; None if unknown.
        initial: count to start from.
    """

    def __init__(self, label: str, unit: str, total: int | None = None, initial: int = 0) -> None:
        self._label, self._unit, self._total = label, unit, total
        self._count, self._start, self._last_line = initial, time.monotonic(), time.monotonic()
        terminal = sys.stderr.isatty() and is_main_process()
        self._bar: Any = (
            tqdm(desc=label, unit=f" {unit}", total=total, initial=initial, leave=False, unit_scale=True)
            if terminal
            else None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        """Close it, with a summary unless the work failed."""
        self.close(summary=failure is None)

    def advance(self, count: int, note: str = "") -> None:
        """Add to the count; ``note`` is shown after it."""
        self._count += count
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
        elif time.monotonic() - self._last_line >= LINE_INTERVAL_SECONDS:
            self._last_line = time.monotonic()
            of = f" of {self._total:,}" if self._total else ""
            print_status(f"{self._label}: {self._count:,}{of} {self._unit} {note}".rstrip())

    def close(self, *, summary: bool = True) -> None:
        """Remove the bar and print one line with the count and the duration, unless the caller prints a summary."""
        if self._bar is not None:
            self._bar.close()
        if summary:
            print_status(f"{self._label}: {self._count:,} {self._unit} in {time.monotonic() - self._start:.1f} s")
