"""Collected feedback: the mark that says until when it is complete, and what all collections have in common."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from ranking.artifacts.atomic_files import os_error_text, write_errors
from ranking.artifacts.log_names import FEEDBACK, PART_SUFFIX
from ranking.errors import OutputError

FEEDBACK_SECONDS = 60.0
"""Seconds of feedback that become one file, unless it is much or the collection ends."""
LATE = timedelta(seconds=30)
"""Time after its arrival at the service until which feedback is in the source, or was not acknowledged."""


class FeedbackMark:
    """An empty unfinished file, ``feedback-TIME-SOURCE.jsonl.part``.

    Feedback since that time may still be in the source, as that of an unfinished file of the service may not be read
    yet.

    Args:
        folder: folder of the feedback.
        source: name of the source.
    """

    def __init__(self, folder: Path, source: str) -> None:
        self._folder, self._source = folder, source

    def exists(self) -> bool:
        """Return whether there is a mark.

        Raises:
            OutputError: the folder cannot be read.
        """
        return bool(self._marks())

    def set(self, until: datetime) -> None:
        """Declare the feedback until a time as complete, unless it is complete until a later one.

        Raises:
            OutputError: the mark cannot be written.
        """
        marks = self._marks()
        mark = self._path(max([until, *marks.values()]))
        with write_errors(mark):
            mark.touch(0o640)
            for earlier in marks.keys() - {mark}:
                earlier.unlink(missing_ok=True)

    def _path(self, until: datetime) -> Path:
        return self._folder / f"{FEEDBACK.start(until)}-{self._source}{FEEDBACK.suffix}{PART_SUFFIX}"

    def _marks(self) -> dict[Path, datetime]:
        """Return the marks of the source and their times; there are two if a process ended while it replaced one."""
        names = ((path, FEEDBACK.parse(path.name)) for path in files_of(self._folder))
        times = {path: name.created for path, name in names if name is not None and name.created is not None}
        return {path: created for path, created in times.items() if path == self._path(created)}


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder.

    Raises:
        OutputError: the folder cannot be read.
    """
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise OutputError(f"{folder}: cannot be read ({os_error_text(error)})") from None
