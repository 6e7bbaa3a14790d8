"""Finished files of the served log: one row per request, with lists of its candidates, best first."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ranking.artifacts.log_names import SERVED
from ranking.encoding.vocabulary import IdArray
from ranking.errors import LogError, single_line
from ranking.regular_files import is_damage
from ranking.schema import Owner
from ranking.served_log.schema import (
    BUNDLE,
    FORMAT,
    METADATA_KEY,
    TIME,
    ServedColumn,
    ServedDescription,
    source_column,
)


class DamagedFileError(LogError):
    """A file that is torn, or that is not part of a served log.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: is damaged, or is not part of a served log ({reason}); restore it or move it away")
        self.path = path


@dataclass(frozen=True)
class ServedFile(ServedDescription):
    """A finished file, which never changes.

    Attributes:
        path: the file.
        stored: Arrow schema of the file.
    """

    path: Path
    stored: pa.Schema = field(repr=False)

    @classmethod
    def open(cls, path: Path) -> ServedFile:
        """Read the description of a file.

        Raises:
            DamagedFileError: the file is damaged or not part of a served log.
            LogError: the file cannot be read, or has a later format.
        """
        with _reading(path):
            stored = pq.read_schema(path)
            if METADATA_KEY not in (stored.metadata or {}):
                raise DamagedFileError(path, "it has no description of a served log")
            document = json.loads(stored.metadata[METADATA_KEY])
            if document["format"] != FORMAT:
                raise LogError(f"{path}: has format {document['format']} of the served log; update dselect-ranker")
            description = ServedDescription.from_document(document)
            _check_columns(path, stored, description.columns)
            return cls(**vars(description), path=path, stored=stored)

    def requests(self) -> pa.Table:
        """Return ``request_id``, ``t`` (time in microseconds) and ``row`` of each request.

        Raises:
            DamagedFileError: the file is damaged.
            LogError: the file cannot be read.
        """
        table = self.read(["request_id", "time"])
        times = table["time"].cast(TIME).cast(pa.int64())
        return pa.table({"request_id": table["request_id"], "t": times, "row": np.arange(table.num_rows)})

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """Return columns of the file; default: all.

        Raises:
            DamagedFileError: the file is damaged.
            LogError: the file cannot be read.
        """
        with _reading(self.path):
            return pq.ParquetFile(self.path, page_checksum_verification=True).read(columns)


def find_served_files(folder: Path) -> list[Path]:
    """Return the finished files of a served log, oldest first.

    Raises:
        LogError: the folder does not exist or cannot be read.
    """
    return [path for path, name in SERVED.files_in(folder) if name.finished]


def creation_time(path: Path) -> datetime | None:
    """Return the time in the name of a file; None if its name has none."""
    name = SERVED.parse(path.name)
    return None if name is None else name.created


class ServedCandidates:
    """Candidates of some requests of a file, one row each.

    Args:
        file: the file.
        rows: positions of the requests in the file, ascending.

    Attributes:
        request: position among ``rows`` of the request of each candidate.
        positions: position of each candidate in its answer, from 0.

    Raises:
        DamagedFileError: the file is damaged.
        LogError: the file cannot be read.
    """

    def __init__(self, file: ServedFile, rows: IdArray) -> None:
        self._file, self._table = file, file.read().take(pa.array(rows))
        lengths = pc.list_value_length(self._column("item_id")).fill_null(0).to_numpy()
        starts = np.cumsum(lengths) - lengths
        self.request: IdArray = np.repeat(np.arange(len(rows)), lengths)
        self.positions: IdArray = np.arange(lengths.sum()) - np.repeat(starts, lengths)

    def shared(self, name: str) -> pa.Array:
        """Return a column of requests, repeated for each candidate."""
        return self._column(name).take(pa.array(self.request))

    def items(self, name: str) -> pa.Array:
        """Return a column of candidates."""
        return pc.list_flatten(self._column(name))

    def feature(self, column: ServedColumn) -> pa.Array:
        """Return the logged values of a feature column; null where the file has none."""
        if column.stored not in self._table.column_names:
            return pa.nulls(len(self.request))
        return self.items(column.stored) if column.owner == "item" else self.shared(column.stored)

    def from_bundle(self, column: ServedColumn) -> npt.NDArray[np.bool_]:
        """Return which values of a feature column are those of the bundle's tables [candidates]."""
        position = [c.name for c in self._file.columns if c.owner == column.owner].index(column.name)
        from_bundle: npt.NDArray[np.bool_] = self._sources(column.owner)[:, position] == BUNDLE
        return from_bundle

    def _sources(self, owner: Owner) -> npt.NDArray[np.uint8]:
        """Return the sources of an owner's values [candidates, columns]."""
        name = source_column(owner)
        values = self.items(name) if owner == "item" else self.shared(name)
        width = values.type.byte_width
        content = np.frombuffer(values.buffers()[1], np.uint8)
        return content[values.offset * width : (values.offset + len(values)) * width].reshape(-1, width)

    def _column(self, name: str) -> pa.Array:
        return self._table[name].combine_chunks()


def _check_columns(path: Path, stored: pa.Schema, columns: Iterable[ServedColumn]) -> None:
    """Check that a file has the columns of a served log, with lists of candidates.

    Raises:
        DamagedFileError: it has not.
    """
    of_requests = {"request_id", "time", "user_id"} | {source_column(c.owner) for c in columns if c.owner != "item"}
    of_items = {"item_id"} | {source_column("item") for c in columns if c.owner == "item"}
    of_items |= {c.stored for c in columns if c.owner == "item" and c.stored in stored.names}
    for name in sorted(of_requests | of_items):
        if name not in stored.names:
            raise DamagedFileError(path, f"it has no column '{name}'")
        kind = stored.field(name).type
        if (name in of_items) != (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            raise DamagedFileError(path, f"column '{name}' has type {kind}")
    if not pa.types.is_timestamp(stored.field("time").type):
        raise DamagedFileError(path, "its times have no type of times")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors of reading a file into ``DamagedFileError``, or ``LogError`` if the system cannot read it."""
    try:
        yield
    except (OSError, pa.ArrowException, ValueError, LookupError, TypeError) as error:
        if not is_damage(error):
            raise LogError(f"{path}: cannot be read ({single_line(error)}); fix this and repeat the command") from None
        raise DamagedFileError(path, single_line(error)) from None
