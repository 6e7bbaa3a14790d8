"""Rows of a log in several folders that a later folder replaces: those with the same request and item.

A history from a warehouse and a joined log may both hold an impression. The later folder wins, which should be the
joined log: it has the features that were served.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from pipelines.data.dedup import DuplicateFilter, Hashes
from pipelines.data.parquet import LogFile
from ranking.encoding.vocabulary import IdArray, hash_column, mix_hashes
from ranking.schema import Schema

REQUEST = "request_id"
"""Column of the request id if the configuration names none; logs of ``ranker join`` have it."""


class ReplacedRows:
    """Finds rows of a folder whose request and item occur in a later folder, at 8 bytes per row of later folders.

    Rows without a request id, and files without its column, are kept.

    Args:
        files: files of the log.
        schema: schema that names the columns.

    Raises:
        LogError: a file cannot be read when the first rows are looked up.
    """

    def __init__(self, files: Sequence[LogFile], schema: Schema) -> None:
        self._files = files
        self._columns = (schema.columns.request or REQUEST, schema.columns.item)

    def find(self, file: LogFile, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return whether a later folder replaces each row [rows] of a table from a file."""
        replaced = np.zeros(table.num_rows, np.bool_)
        later = [keys for source, keys in self._keys_of.items() if source > file.source]
        if later and {*self._columns} <= {*table.column_names}:
            hashes = self._hashes(table)
            for keys in later:
                replaced |= keys.contains(hashes)
            replaced &= hashes != 0
        return replaced

    @cached_property
    def _keys_of(self) -> dict[int, DuplicateFilter]:
        """Hashes of request and item of each folder that may replace rows of an earlier one."""
        keys: dict[int, DuplicateFilter] = {}
        several = len({file.source for file in self._files}) > 1
        with_ids = [file for file in self._files if several and self._has_ids(file)]
        first = min((file.source for file in with_ids), default=0)
        for file in with_ids:
            if file.source > first:
                self._remember(file, keys.setdefault(file.source, DuplicateFilter()))
        return keys

    def _has_ids(self, file: LogFile) -> bool:
        try:
            with file.open() as parquet:
                return {*self._columns} <= {*parquet.schema.names, *file.keys}
        except (OSError, pa.ArrowException) as error:
            raise file.read_error(error) from None

    def _remember(self, file: LogFile, keys: DuplicateFilter) -> None:
        try:
            with file.open() as parquet:
                for group in range(len(parquet.row_group_sizes)):
                    for table in parquet.chunks(group, self._columns, None, threads=True):
                        keys.add(self._hashes(table))
        except (OSError, pa.ArrowException) as error:
            raise file.read_error(error) from None

    def _hashes(self, table: pa.Table) -> Hashes:
        """Return a hash of request and item [rows]; 0 without one of them."""
        return mix_hashes([_hash_ids(table[name].combine_chunks()) for name in self._columns]).view(np.uint64)


def _hash_ids(column: pa.Array) -> IdArray:
    """Return the hash of each id [rows]; pandas writes integers as floats if a column has nulls."""
    return hash_column(column.cast(pa.int64(), safe=False) if pt.is_floating(column.type) else column)
