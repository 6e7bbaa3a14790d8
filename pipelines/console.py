"""Progress on stderr: a bar on a terminal, a plain line now and then otherwise. Results never go there."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from tqdm import tqdm

LINE_SECONDS = 5.0


def is_main_process() -> bool:
    """Whether this process tells how things go: of the ranks that torchrun starts, only the first."""
    return os.environ.get("RANK", "0") == "0"


def print_status(message: str) -> None:
    """One line on stderr, above any bar, if this process speaks."""
    if is_main_process():
        tqdm.write(message, file=sys.stderr)


class Progress:
    """Counts towards a total, if there is one.

    Args:
        what: shown in front.
        unit: what is counted.
        total: how many there will be, if known.
        done: how many there were before.
    """

    def __init__(self, what: str, unit: str, total: int | None = None, done: int = 0) -> None:
        self._what, self._unit, self._total = what, unit, total
        self._count, self._start, self._said = done, time.monotonic(), time.monotonic()
        terminal = sys.stderr.isatty() and is_main_process()
        self._bar: Any = (
            tqdm(desc=what, unit=f" {unit}", total=total, initial=done, leave=False, unit_scale=True)
            if terminal
            else None
        )

    def advance(self, count: int, note: str = "") -> None:
        """Counts on; ``note`` stands behind the bar or line."""
        self._count += count
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
        elif time.monotonic() - self._said >= LINE_SECONDS:
            self._said = time.monotonic()
            of = f" of {self._total:,}" if self._total else ""
            print_status(f"{self._what}: {self._count:,}{of} {self._unit} {note}".rstrip())

    def close(self) -> None:
        """Ends with one line that says how many and how long."""
        if self._bar is not None:
            self._bar.close()
        print_status(f"{self._what}: {self._count:,} {self._unit} in {time.monotonic() - self._start:.1f} s")
