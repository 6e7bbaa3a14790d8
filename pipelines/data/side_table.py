"""Side tables in Parquet: features of users or items by id, read and checked in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.config.uri import Uri, redact_uri
from pipelines.data.dated_table import VALID_FROM, RowDates, is_dated, time_zone, valid_times
from pipelines.data.dedup import DuplicateFilter, value_hashes
from pipelines.data.parquet import LogFile, find_files
from pipelines.data.reader import as_log_error
from ranking.counters.state import StateClock
from ranking.encoding.columns import canonical_ids, cast_ids, holds_integers, invalid_rows
from ranking.encoding.feature_table import fill_features
from ranking.encoding.vocabulary import IdArray
from ranking.errors import InvalidInputError, LogError
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Owner


@dataclass(frozen=True)
class SideTableChunk:
    """Some rows of a side table.

    Attributes:
        ids: int64 or string, without nulls.
        features: the other columns with canonical types, one row per id.
    """

    ids: pa.Array
    features: pa.Table

    def filter(self, rows: npt.NDArray[np.bool_]) -> SideTableChunk:
        """Return the rows for which the mask [rows] is set."""
        return SideTableChunk(self.ids.filter(pa.array(rows)), self.features.filter(pa.array(rows)))


class SideTableReader:
    """Reader of one side table.

    Of a table with several rows per id (see ``dated_table``) it yields the row of each id that is valid now.

    Args:
        where: Parquet file or folder.
        ranker: ranker that uses the features; columns that it does not use are ignored.
        owner: owner of the features.

    Attributes:
        num_rows: number of rows; after ``check`` of those that the reader yields.
        known_ids: ids that the ranker has seen; None if it does not know any.
        known_rows: number of these rows with known ids; set by ``check``.
        columns: columns that are read, without the id column.
        ignored_columns: columns of the files that no feature uses.
        missing_columns: columns that features use but no file has.

    Raises:
        LogError: the files are missing or cannot be read, or have no id column or no column of a feature.
    """

    def __init__(self, where: Uri, ranker: FrozenRanker, owner: Owner) -> None:
        schema = ranker.schema
        self._files, self._key = find_files(where), str(schema.id_column(owner))
        self._ranker, self._owner, self.known_ids = ranker, owner, ranker.known_ids(owner)
        names: dict[str, None] = {}
        self.num_rows = self.known_rows = 0
        for file in self._files:
            try:
                with file.open() as parquet:
                    self.num_rows += sum(parquet.row_group_sizes)
                    columns = [*parquet.schema.names, *file.keys]
            except (OSError, pa.ArrowException) as error:
                raise file.read_error(error) from None
            if self._key not in columns:
                raise LogError(f"{file.display_name}: has no id column '{self._key}' (found: {', '.join(columns)})")
            names |= dict.fromkeys(columns)
        required = schema.columns_of(owner)
        self.columns = [column for column in required if column in names]
        self.missing_columns = [column for column in required if column not in names]
        self.ignored_columns = [column for column in names if column not in required and column != self._key]
        if not self.columns:
            raise LogError(
                f"{redact_uri(where)}: has no column that the ranker reads for {owner}s "
                f"({', '.join(required) or 'it reads none'})"
            )
        self._dated = is_dated(list(names), required)
        self.ignored_columns = [column for column in self.ignored_columns if not (self._dated and column == VALID_FROM)]
        self._zone: str | None = None
        self._current: npt.NDArray[np.bool_] | None = None
        inputs = [feature for feature in schema.inputs if feature.owner == owner]
        self._features = [(feature.name, feature.column) for feature in inputs]

    def check(self) -> Iterator[int]:
        """Read and check all rows; yields the number of rows of each checked chunk.

        Raises:
            LogError: a value has the wrong type or is NaN, or an id is null, a duplicate, or of a type that the ranker
                cannot know; names file, column and row.
        """
        seen, dates = DuplicateFilter(), RowDates()
        for file in self._files:
            start = 0
            for chunk, times in self._read(file):
                keys = {self._key: chunk.ids} if times is None else {self._key: chunk.ids, VALID_FROM: pa.array(times)}
                new = seen.first_seen(pa.table(keys))
                if not new.all():
                    with as_log_error(file.display_name):
                        rule = f"row per {'id' if times is None else f'id and {VALID_FROM}'}"
                        reason = f"the id is a duplicate of an earlier row: keep one {rule}"
                        raise InvalidInputError(self._key, reason, start + int(new.argmin()))
                if times is None:
                    self._count_known(chunk)
                else:
                    dates.add(value_hashes(chunk.ids), times)
                start += len(chunk.ids)
                yield len(chunk.ids)
        if self._dated:
            self._current = dates.current(StateClock(0, self._zone).now())
            self.num_rows = int(np.count_nonzero(self._current))
            for chunk in self:
                self._count_known(chunk)

    def __iter__(self) -> Iterator[SideTableChunk]:
        """Yield the rows in chunks; call ``check`` before.

        Raises:
            LogError: as for ``check``, except for duplicate ids.
        """
        start = 0
        for file in self._files:
            for chunk, _ in self._read(file):
                stop = start + len(chunk.ids)
                yield chunk if self._current is None else chunk.filter(self._current[start:stop])
                start = stop

    def _count_known(self, chunk: SideTableChunk) -> None:
        if self.known_ids is not None:
            self.known_rows += len(chunk.ids) - self._ranker.count_unseen(self._owner, chunk.ids)

    def _read(self, file: LogFile) -> Iterator[tuple[SideTableChunk, IdArray | None]]:
        """Yield the rows of a file in chunks, with the time from which each is valid; None without dates."""
        start = 0
        columns = [self._key, *self.columns, *([VALID_FROM] if self._dated else [])]
        try:
            with file.open() as parquet:
                for group in range(len(parquet.row_group_sizes)):
                    for table in parquet.chunks(group, columns, None, threads=True):
                        with as_log_error(file.display_name):
                            chunk = self._check_chunk(table, start)
                            times = self._valid_times(table, start) if self._dated else None
                        yield chunk, times
                        start += table.num_rows
        except (OSError, pa.ArrowException) as error:
            raise file.read_error(error) from None

    def _valid_times(self, table: pa.Table, start: int) -> IdArray:
        """Return the time from which each row of a chunk is valid; the chunk begins at row ``start`` of its file."""
        if VALID_FROM not in table.column_names:
            raise InvalidInputError(VALID_FROM, "is missing in this file, but another file of the table has it")
        self._zone = time_zone(table[VALID_FROM].type)
        try:
            return valid_times(table[VALID_FROM])
        except InvalidInputError as error:
            raise InvalidInputError(
                error.field, error.reason, None if error.row is None else start + error.row
            ) from None

    def _check_chunk(self, table: pa.Table, start: int) -> SideTableChunk:
        """Check and convert the rows of a chunk that begins at row ``start`` of its file."""
        ids = self._convert_ids(canonical_ids(table[self._key].combine_chunks(), self._key))
        if ids.null_count:
            row = start + ids.is_null().index(True).as_py()
            raise InvalidInputError(self._key, "the id is null: every row needs an id", row)
        names = [name for name, column in self._features if column in self.columns and column in table.column_names]
        encoder = self._ranker.encoder.restricted(names)
        schema = encoder.schema
        completed = fill_features(table, schema, {})
        for feature, invalid, rule in invalid_rows(completed, schema):
            row = invalid.index(True).as_py()
            if row >= 0:
                raise InvalidInputError(feature.column, rule, start + row)
        encoder.encode(completed)  # rejects ids of a type that the vocabularies do not have
        columns = [column for column in self.columns if column in table.column_names]
        return SideTableChunk(ids, completed.select(columns))

    def _convert_ids(self, ids: pa.Array) -> pa.Array:
        """Convert ids to the type of the known ones.

        Raises:
            InvalidInputError: a text is not the decimal text of an integer, or an integer cannot be one of the ids
                because none of those is the decimal text of an integer.
        """
        known = self.known_ids
        if known is None or not len(known) or ids.type == known.type:
            return ids
        if pa.types.is_integer(ids.type) and not holds_integers(known):
            reason = f"holds integers, but the ids of the bundle are text such as {known[0].as_py()!r:.40}"
            raise InvalidInputError(self._key, f"{reason}: write the ids as in the training log")
        return cast_ids(ids, known.type, self._key)
