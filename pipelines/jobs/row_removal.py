"""Removal of rows from files that other programs read: each file is replaced as a whole, or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.data.chunk_names import ChunkNames, footer_digest
from pipelines.data.parquet import CHUNK_ROWS
from ranking.artifacts.atomic_files import os_error_text, replaced_file
from ranking.errors import LogError, OutputError, single_line
from ranking.regular_files import is_damage


def parquet_files(where: Path) -> list[Path]:
    """Return a Parquet file, or the finished Parquet files below a folder; none if it does not exist."""
    if where.is_file():
        return [where]
    return sorted(file for file in where.rglob("*.parquet") if not file.name.startswith("."))


def remove_parquet_rows(
    file: Path, column: str, selected: Callable[[pa.Array], pa.Array], unreadable: list[str]
) -> int:
    """Remove rows from a Parquet file; a file without remaining rows is deleted.

    Each chunk of the file becomes a row group and keeps its name, so that ``ranker counters`` does not apply the
    others again.

    Args:
        file: the file; it may disappear before it is read.
        column: column that decides.
        selected: returns whether the row of each value is removed [rows] bool.
        unreadable: gets a message if the file is damaged.

    Returns:
        The number of removed rows.

    Raises:
        LogError: the file has no such column.
        OutputError: the file cannot be replaced.
    """
    try:
        with pq.ParquetFile(file) as parquet:
            if column not in parquet.schema_arrow.names:
                raise LogError(f"{file}: has no column '{column}' (found: {', '.join(parquet.schema_arrow.names)})")
            masks = [selected(rows[column].combine_chunks()) for _, rows in _chunks(parquet, [column])]
            removed: int = sum(mask.true_count for mask in masks)
            if removed == parquet.metadata.num_rows and removed:
                file.unlink()
            elif removed:
                names = ChunkNames.of(parquet, footer_digest(parquet))
                if names.starts is None:
                    names = replace(names, starts=[start for start, _ in _chunks(parquet, [column])])
                metadata = (parquet.schema_arrow.metadata or {}) | names.metadata([mask.false_count for mask in masks])
                schema = parquet.schema_arrow.with_metadata(metadata)
                with _kept_rows(file) as stream, pq.ParquetWriter(stream, schema, write_page_checksum=True) as writer:
                    for (_, rows), mask in zip(_chunks(parquet), masks, strict=True):
                        writer.write_table(rows.filter(pc.invert(mask)).replace_schema_metadata(metadata), CHUNK_ROWS)
            return removed
    except FileNotFoundError:  # collected in the meantime
        return 0
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and not is_damage(error):
            raise _output_error(file, error) from None
        unreadable.append(f"{file}: is damaged ({single_line(error)})")
        return 0


def remove_feedback(file: Path, request_ids: Collection[str], unreadable: list[str]) -> int:
    """Remove the lines of some requests from a file of feedback; a file without remaining lines is deleted.

    Args:
        file: the file; it may disappear before it is read.
        request_ids: ids of the requests.
        unreadable: gets a message for each line that is not a JSON object with a request id; such lines are kept.

    Returns:
        The number of removed lines.

    Raises:
        OutputError: the file cannot be replaced.
    """
    try:
        with file.open("rb") as lines:
            ids = [_request_id(line) for line in lines]
        unreadable += [f"{file}, line {i}: is not feedback" for i, name in enumerate(ids, start=1) if name is None]
        removed = [name in request_ids for name in ids]
        if removed and all(removed):
            file.unlink()
        elif any(removed):
            with _kept_rows(file) as stream, file.open("rb") as lines:
                stream.writelines(line for line, is_removed in zip(lines, removed, strict=True) if not is_removed)
        return sum(removed)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise _output_error(file, error) from None


def _chunks(parquet: pq.ParquetFile, columns: list[str] | None = None) -> Iterator[tuple[tuple[int, int], pa.Table]]:
    """Yield the row group and the first row of each chunk, and its rows; a row group without rows is a chunk, too."""
    for group in range(parquet.num_row_groups):
        rows = parquet.read_row_group(group, columns)
        for start in range(0, max(1, rows.num_rows), CHUNK_ROWS):
            yield (group, start), rows.slice(start, CHUNK_ROWS)


def _request_id(line: bytes) -> str | None:
    """Return the request id of a line of feedback; None if the line is damaged."""
    try:
        return str(orjson.loads(line)["request_id"])
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return None


@contextmanager
def _kept_rows(file: Path) -> Iterator[BinaryIO]:
    """Yield a stream whose content replaces a file on success, with its permissions."""
    mode = stat.S_IMODE(file.stat().st_mode)
    with replaced_file(file, mode) as stream:
        yield stream
        os.fchmod(stream.fileno(), mode)  # also what the umask restricts


def _output_error(file: Path, error: OSError) -> OutputError:
    return OutputError(f"{file}: cannot be replaced ({os_error_text(error)}); fix this, then repeat the command")
