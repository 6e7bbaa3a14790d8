"""Open files of the test process.

Tests ask for those of their own folder: the garbage of other tests may be collected, and its files closed, at any time.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def open_files(start: Path | str) -> list[Path]:
    """Return the paths in ``/proc`` of the descriptors whose file has a path with this start."""
    found = []
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            if os.readlink(path).startswith(str(start)):  # noqa: PTH115 — the text of the link
                found.append(path)
    return found
