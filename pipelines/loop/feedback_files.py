"""Finished files of feedback: JSON Lines, one line per request with its events."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ranking.artifacts.log_names import FEEDBACK

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MAX_LINE_BYTES = 256 * 1024 * 1024
"""Maximum size of a line."""
LINE = "request_id: 'VARCHAR', received: 'VARCHAR', events: '" + (
    'STRUCT(item JSON, labels MAP(VARCHAR, DOUBLE), "time" VARCHAR)[]' + "'"
)
"""Columns of a line."""
SHOWN_LINES = 5
"""Number of damaged lines of a file that a message names."""
MAX_DAMAGED = 1_000
"""Number of damaged lines of a file after which no more are looked for."""


def find_feedback_files(folder: Path) -> list[Path]:
    """Return the finished files of feedback, oldest first.

    Raises:
        LogError: the folder does not exist or cannot be read.
    """
    return [path for path, name in FEEDBACK.files_in(folder) if name.finished]


def oldest_unfinished(folder: Path) -> datetime | None:
    """Return the time since which feedback may be in an unfinished file, or in a Kafka topic; None if there is none.

    Raises:
        LogError: the folder does not exist or cannot be read.
    """
    # Listed twice: a folder that is listed while ``ranker collect`` replaces its mark may show neither of the two.
    files = [name for _ in range(2) for _, name in FEEDBACK.files_in(folder)]
    return min((name.created for name in files if not name.finished and name.created is not None), default=None)


def read_events(connection: DuckDBPyConnection, files: list[Path], work: Path) -> dict[Path, str]:
    """Create the table ``events`` from files of feedback.

    Its columns are ``file`` (path), ``request_id``, ``item`` (text), ``labels``, ``t`` (time of the event, or
    else of its arrival) and ``received``, both in microseconds.

    Args:
        connection: the database.
        files: the files.
        work: folder for temporary files.

    Returns:
        A message for each file with damaged lines, which are left out.
    """
    connection.execute(
        "CREATE OR REPLACE TABLE events (file VARCHAR, request_id VARCHAR, item VARCHAR, "
        "labels MAP(VARCHAR, DOUBLE), t BIGINT, received BIGINT)"
    )
    damaged = {}
    for path in files:
        if not _read(connection, path, path):
            damaged[path] = _describe(path, _read_lines(connection, path, work / "lines.jsonl"))
    return damaged


def _read(connection: DuckDBPyConnection, path: Path, name: Path) -> bool:
    """Add the events of a file under a name; add none and return False if a line is damaged."""
    import duckdb  # part of the train extra

    try:
        connection.execute(
            f"""
            INSERT INTO events
            SELECT $name, request_id, coalesce(event.item ->> '$', error('no item')),
                coalesce(event.labels, error('no labels')),
                epoch_us(coalesce(event.time, received)::TIMESTAMPTZ), epoch_us(received::TIMESTAMPTZ)
            FROM (
                SELECT request_id, received, unnest(CASE
                    WHEN request_id IS NULL OR received IS NULL OR events IS NULL THEN error('not feedback')
                    ELSE events END) AS event
                FROM read_json($path, format = 'newline_delimited', columns = {{{LINE}}}, hive_partitioning = false,
                    maximum_object_size = {MAX_LINE_BYTES})
            )
            """,
            {"name": str(name), "path": str(path)},
        )
    except (duckdb.InvalidInputException, duckdb.DataError):
        return False
    return True


def _read_lines(connection: DuckDBPyConnection, path: Path, part: Path) -> list[int]:
    """Add the events of all lines but the damaged ones, and return the numbers of these, from 1.

    Halves of the lines are read until only damaged lines remain. After ``MAX_DAMAGED`` of them the others are not read.

    Args:
        connection: the database.
        path: the file.
        part: path of a temporary file.
    """
    lines = path.read_bytes().split(b"\n")
    damaged: list[int] = []

    def read(start: int, stop: int) -> None:
        if len(damaged) >= MAX_DAMAGED:
            return
        part.write_bytes(b"\n".join(lines[start:stop]))
        if _read(connection, part, path):
            return
        if stop - start == 1:
            damaged.append(stop)
            return
        middle = (start + stop) // 2
        read(start, middle)
        read(middle, stop)

    read(0, len(lines))
    return damaged


def _describe(path: Path, lines: list[int]) -> str:
    if len(lines) >= MAX_DAMAGED:
        return f"{path}: more than {MAX_DAMAGED:,} lines are not feedback; restore or delete the file"
    more = f" and {len(lines) - SHOWN_LINES:,} more" if len(lines) > SHOWN_LINES else ""
    numbers = ", ".join(map(str, lines[:SHOWN_LINES]))
    subject = f"line {numbers} is" if len(lines) == 1 else f"lines {numbers}{more} are"
    return f"{path}: {subject} not feedback; correct or delete {'it' if len(lines) == 1 else 'them'}"
