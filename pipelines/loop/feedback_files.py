"""Finished files of feedback: JSON Lines, one line per request with its events."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

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
EVENT = pa.schema(
    {
        "request_id": pa.string(),
        "item": pa.string(),
        "labels": pa.map_(pa.string(), pa.float64()),
        "t": pa.int64(),
        "received": pa.int64(),
    }
)
"""Columns of an event."""
SHOWN_LINES = 5
"""Number of damaged lines of a file that a message names."""


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


def read_events(connection: DuckDBPyConnection, files: list[Path]) -> list[str]:
    """Create the table ``events`` from files of feedback.

    Its columns are ``file`` (path), ``request_id``, ``item`` (text), ``labels``, ``t`` (time of the event, or
    else of its arrival) and ``received``, both in microseconds.

    Returns:
        A message for each file with damaged lines, which are left out.

    Raises:
        LogError: a file cannot be read.
    """
    import duckdb  # part of the train extra

    connection.execute(
        "CREATE OR REPLACE TABLE events (file VARCHAR, request_id VARCHAR, item VARCHAR, "
        "labels MAP(VARCHAR, DOUBLE), t BIGINT, received BIGINT)"
    )
    left_out = []
    for path in files:
        try:
            _read_file(connection, path)
        except (duckdb.InvalidInputException, duckdb.ConversionException):
            damaged = _read_lines(connection, path)
            more = f" and {len(damaged) - SHOWN_LINES:,} more" if len(damaged) > SHOWN_LINES else ""
            lines = f"line{'s' * (len(damaged) > 1)} {', '.join(map(str, damaged[:SHOWN_LINES]))}{more}"
            left_out.append(f"{path}: {lines}: not feedback; correct or delete what is damaged")
    return left_out


def _read_file(connection: DuckDBPyConnection, path: Path) -> None:
    """Add the events of a file; fails without adding any if a line is damaged."""
    connection.execute(
        f"""
        INSERT INTO events
        SELECT $path, request_id, event.item ->> '$', event.labels,
            epoch_us(coalesce(event.time, received)::TIMESTAMPTZ), epoch_us(received::TIMESTAMPTZ)
        FROM (
            SELECT request_id, received, unnest(CASE
                WHEN request_id IS NULL OR received IS NULL OR events IS NULL THEN error('not feedback')
                ELSE events END) AS event
            FROM read_json($path, format = 'newline_delimited', columns = {{{LINE}}}, hive_partitioning = false,
                maximum_object_size = {MAX_LINE_BYTES})
        )
        """,
        {"path": str(path)},
    )


def _read_lines(connection: DuckDBPyConnection, path: Path) -> list[int]:
    """Add the events of all lines but the damaged ones, and return the numbers of these, from 1."""
    events: list[dict[str, Any]] = []
    damaged = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                events += _parse_line(line)
            except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
                damaged.append(number)
    table = pa.Table.from_pylist(events, EVENT)
    connection.register("parsed", table)
    connection.execute("INSERT INTO events SELECT $path, * FROM parsed", {"path": str(path)})
    connection.unregister("parsed")
    return damaged


def _parse_line(line: bytes) -> list[dict[str, Any]]:
    """Return the events of a line as rows of ``EVENT``; none if the line is blank."""
    if not line.strip():
        return []
    entry = orjson.loads(line)
    request_id, received = _id(entry["request_id"]), _microseconds(entry["received"])
    return [
        {
            "request_id": request_id,
            "item": _id(event["item"]),
            "labels": [(name, float(value)) for name, value in event["labels"].items()],
            "t": received if event.get("time") is None else _microseconds(event["time"]),
            "received": received,
        }
        for event in entry["events"]
    ]


def _id(value: object) -> str:
    if not isinstance(value, str | int):
        raise TypeError("an id is neither text nor an integer")
    return str(value)


def _microseconds(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1e6)


def _files(folder: Path) -> list[tuple[Path, bool]]:
    """Return the files of feedback and whether they are unfinished."""
    try:
        matches = [(path, FILE_NAME.fullmatch(path.name)) for path in sorted(folder.iterdir())]
    except OSError as error:
        reason = f"cannot be read ({os_error_text(error)}); name the feedback_dir of the service"
        raise LogError(f"{folder}: {reason}") from None
    return [(path, name["part"] is not None) for path, name in matches if name is not None]
