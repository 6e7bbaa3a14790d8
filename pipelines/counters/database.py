"""DuckDB over the events of a log: sorts, joins and sums that do not fit into memory are written to disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.counters.events import Events
from ranking.errors import OutputError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_LIMIT = "50%"
"""Share of the memory of the machine or container that DuckDB may use."""
BATCH_ROWS = 122_880
"""Rows of a batch of results."""


@contextmanager
def open_database(events: Events, folder: Path) -> Iterator[DuckDBPyConnection]:
    """Open a database in memory with the view ``events``.

    Args:
        events: the events of a log, at least one.
        folder: folder for temporary files.

    Raises:
        OutputError: a query needs more memory or disk space than there is.
    """
    with empty_database(folder, f"{folder}: counters cannot be computed") as connection:
        connection.read_parquet(str(events.file)).create_view("events")
        yield connection


@contextmanager
def empty_database(folder: Path, failure: str) -> Iterator[DuckDBPyConnection]:
    """Open an empty database in memory.

    Args:
        folder: folder for temporary files.
        failure: start of the message of an error.

    Raises:
        OutputError: a query needs more memory or disk space than there is.
    """
    import duckdb  # part of the train extra

    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": MEMORY_LIMIT,
        "temp_directory": str(folder / "spill"),
        "preserve_insertion_order": False,
    }
    with duckdb.connect(config=settings) as connection:
        try:
            yield connection
        except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
            reason = " ".join(str(error).split())[:300]
            raise OutputError(f"{failure} ({reason}); free memory or disk space, then try again") from None
