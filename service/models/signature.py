"""Whether files are still what they were, without reading them."""

from __future__ import annotations

from pathlib import Path

Signature = frozenset[tuple[str, int, int, int]]
"""Path, inode, size and time of the last change of each file and folder."""


def signature(*places: Path) -> Signature:
    """Another one as soon as one of these files, or anything in one of these folders, has changed, come or gone."""
    found = set()
    for path in [*places, *(inner for place in places for inner in place.rglob("*"))]:
        try:
            status = path.stat()
        except OSError:  # it is not there, or no longer
            continue
        found.add((str(path), status.st_ino, status.st_size, status.st_mtime_ns))
    return frozenset(found)
