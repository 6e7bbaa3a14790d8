"""Finished files of feedback: JSON Lines, one line per request with its events."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config.uri import single_line
from ranking.artifacts.atomic_files import os_error_text
from ranking.errors import LogError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FILE_NAME = re.compile(r"feedback-(?P<time>\d{8}T\d{6}Z)-.+\.jsonl(?P<part>\.part)?")
"""Name of a file, with the time of its creation; unfinished ones end with .part."""
MAX_LINE_BYTES = 256 * 1024 * 1024
"""Maximum size of a line."""
LINE = "request_id: 'VARCHAR', received: 'VARCHAR', events: '" + (
    'STRUCT(item JSON, labels MAP(VARCHAR, DOUBLE), "time" VARCHAR)[]' + "'"
)
"""Columns of a line."""


def find_feedback_files(folder: Path) -> list[Path]:
    """Return the finished files of feedback, oldest first.

    Raises:
        LogError: the folder does not exist or cannot be read.
    """
    return [path for path, is_part in _files(folder) if not is_part]


def oldest_unfinished(folder: Path) -> datetime | None:
    """Return the time since which feedback may be in an unfinished file; None if there is none.

    Raises:
        LogError: the folder does not exist or cannot be read.
    """
    names = [FILE_NAME.fullmatch(path.name) for path, is_part in _files(folder) if is_part]
    times = [datetime.strptime(name["time"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) for name in names if name]
    return min(times, default=None)


def read_events(connection: DuckDBPyConnection, files: list[Path]) -> None:
    """Create the table ``events`` from files of feedback.

    Its columns are ``file`` (path), ``request_id``, ``item`` (text), ``labels``, ``t`` (time of the event, or
    else of its arrival) and ``received``, both in microseconds.

    Raises:
        LogError: a file is damaged; names it.
    """
    import duckdb  # part of the train extra

    connection.execute(
        "CREATE OR REPLACE TABLE events (file VARCHAR, request_id VARCHAR, item VARCHAR, "
        "labels MAP(VARCHAR, DOUBLE), t BIGINT, received BIGINT)"
    )
    for path in files:
        try:
            _read_file(connection, path)
        except (duckdb.InvalidInputException, duckdb.ConversionException) as error:
            raise LogError(
                f"{path}: is damaged ({single_line(error)[:200]}); correct the line or move it away"
            ) from None


def _read_file(connection: DuckDBPyConnection, path: Path) -> None:
    connection.execute(
        f"""
        INSERT INTO events
        SELECT $path, request_id, event.item ->> '$', event.labels,
            epoch_us(coalesce(event.time, received)::TIMESTAMPTZ), epoch_us(received::TIMESTAMPTZ)
        FROM (
            SELECT request_id, received, unnest(events) AS event
            FROM read_json($path, format = 'newline_delimited', columns = {{{LINE}}}, hive_partitioning = false,
                maximum_object_size = {MAX_LINE_BYTES})
        )
        """,
        {"path": str(path)},
    )


def _files(folder: Path) -> list[tuple[Path, bool]]:
    """Return the files of feedback and whether they are unfinished."""
    try:
        matches = [(path, FILE_NAME.fullmatch(path.name)) for path in sorted(folder.iterdir())]
    except OSError as error:
        reason = f"cannot be read ({os_error_text(error)}); name the feedback_dir of the service"
        raise LogError(f"{folder}: {reason}") from None
    return [(path, name["part"] is not None) for path, name in matches if name is not None]
