"""Features of users or items in Parquet, read and checked as a ranker knows them, a chunk of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from pipelines.config.uri import Uri, redact_uri
from pipelines.data.dedup import DuplicateFilter
from pipelines.data.parquet import LogFile, find_files
from pipelines.data.reader import as_log_error
from ranking.encoding.columns import cast_ids, invalid_rows
from ranking.encoding.feature_table import fill_features
from ranking.errors import InvalidInputError, LogError
from ranking.schema import Owner, Schema


@dataclass(frozen=True)
class SideTableChunk:
    """Some rows of a side table.

    Attributes:
        ids: int64 or string, without nulls.
        features: the other columns, canonical, one value an id.
    """

    ids: pa.Array
    features: pa.Table


class SideTableReader:
    """The rows of one side table.

    Args:
        where: Parquet file or folder.
        schema: of the ranker that will read them; columns of no feature of its are left out.
        owner: whose features these are.

    Attributes:
        total: number of rows.
        columns: that are read, the id's left out.
        left_out: columns that no feature reads.
        lacking: columns that features read, but that are not there.

    Raises:
        LogError: nothing is there or it cannot be read, the ids are missing, or no column is any feature's.
    """

    def __init__(self, where: Uri, schema: Schema, owner: Owner) -> None:
        self._files, self._key = find_files(where), str(schema.id_column(owner))
        names: dict[str, None] = {}
        self.num_rows = 0
        for file in self._files:
            try:
                with file.open() as opened:
                    self.num_rows += sum(opened.row_group_sizes)
                    found = [*opened.schema.names, *file.keys]
            except (OSError, pa.ArrowException) as error:
                raise file.read_error(error) from None
            if self._key not in found:
                raise LogError(
                    f"{file.display_name}: has no column '{self._key}', which holds the ids (found: {_list(found)})"
                )
            names |= dict.fromkeys(found)
        wanted = schema.columns_of(owner)
        self.columns = [column for column in wanted if column in names]
        self.missing_columns = [column for column in wanted if column not in names]
        self.ignored_columns = [column for column in names if column not in wanted and column != self._key]
        if not self.columns:
            raise LogError(
                f"{redact_uri(where)}: has no column that the ranker reads for {owner}s "
                f"({_list(wanted) or 'it reads none'})"
            )
        given = [feature for feature in schema.inputs if feature.owner == owner]
        self._features = [(feature.name, feature.column) for feature in given]
        self._schema = schema

    def check(self) -> Iterator[int]:
        """Reads everything once; yields how many more rows are good.

        Raises:
            LogError: a value of the wrong type, a NaN, an id that is null or stands twice; names file, column and row.
        """
        seen = DuplicateFilter()
        for file in self._files:
            start = 0
            for rows in self._read(file):
                new = seen.first_seen(pa.table({self._key: rows.ids}))
                if not new.all():
                    with as_log_error(file.display_name):
                        repeated = start + int(new.argmin())
                        raise InvalidInputError(
                            self._key, "its id stands in an earlier row: keep one row per id", repeated
                        )
                start += len(rows.ids)
                yield len(rows.ids)

    def __iter__(self) -> Iterator[SideTableChunk]:
        """The rows, in chunks.

        Raises:
            LogError: as ``check``, repeated ids aside.
        """
        for file in self._files:
            yield from self._read(file)

    def _read(self, file: LogFile) -> Iterator[SideTableChunk]:
        start = 0
        try:
            with file.open() as opened:
                for group in range(len(opened.row_group_sizes)):
                    for table in opened.chunks(group, [self._key, *self.columns], None, threads=True):
                        with as_log_error(file.display_name):
                            rows = self._checked(table, start)
                        yield rows
                        start += table.num_rows
        except (OSError, pa.ArrowException) as error:
            raise file.read_error(error) from None

    def _checked(self, table: pa.Table, start: int) -> SideTableChunk:
        """The rows of a chunk, the first of which is row ``start`` of its file."""
        ids = _ids(table[self._key].combine_chunks(), self._key)
        if ids.null_count:
            raise InvalidInputError(
                self._key, "the id is null: every row needs one", start + ids.is_null().index(True).as_py()
            )
        schema = self._schema.restricted([name for name, column in self._features if column in table.column_names])
        whole = fill_features(table, schema, {})
        for feature, broken, how in invalid_rows(whole, schema):
            row = broken.index(True).as_py()
            if row >= 0:
                raise InvalidInputError(feature.column, how, start + row)
        return SideTableChunk(ids, whole.select([column for column in self.columns if column in table.column_names]))


def _ids(column: pa.Array, key: str) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    whole = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    return cast_ids(column, pa.int64() if whole else pa.string(), key)


def _list(names: list[str]) -> str:
    return ", ".join(names)
