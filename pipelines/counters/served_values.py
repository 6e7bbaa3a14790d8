"""Values of counters and histories that a log already has, because the service computed them when it ranked."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pipelines.data.parquet import LogFile, OpenFile
from pipelines.data.reader import as_log_error
from ranking.encoding.columns import to_canonical
from ranking.encoding.vocabulary import IdArray
from ranking.schema import InputFeature, PooledFeature, Schema


class ServedValues:
    """Replaces computed values in the rows of a file that have served ones.

    A row has served values if one of these columns is not null. Then all columns of the file keep their values, also
    nulls. Other rows, and columns that the file does not have, keep the computed values.

    Args:
        file: the file, for messages.
        parquet: the open file.
        schema: schema with counters or histories.
    """

    def __init__(self, file: LogFile, parquet: OpenFile, schema: Schema) -> None:
        self._file, self._parquet = file, parquet
        self._features = {f.column: f for f in schema.counter_features if f.column in parquet.schema.names}

    def replace(self, columns: dict[str, pa.Array], group: int) -> dict[str, pa.Array]:
        """Return the computed columns of a row group with the served values.

        Raises:
            LogError: the file cannot be read, or a served value does not fit its feature.
        """
        if not self._features:
            return columns
        try:
            stored = pa.concat_tables(self._parquet.chunks(group, [*self._features], None, threads=True))
        except (OSError, pa.ArrowException) as error:
            raise self._file.read_error(error) from None
        with as_log_error(self._file.display_name):
            served = {name: self._canonical(stored[name].combine_chunks(), f) for name, f in self._features.items()}
        is_served = np.any([column.is_valid().to_numpy(zero_copy_only=False) for column in served.values()], axis=0)
        positions: IdArray = np.arange(stored.num_rows)
        sources = pa.array(np.where(is_served, positions, positions + stored.num_rows))
        replaced = {}
        for name, values in served.items():
            computed = columns[name]
            kind = computed.type if pa.types.is_null(values.type) or _is_empty(values.type) else values.type
            replaced[name] = pa.concat_arrays([values.cast(kind), computed.cast(kind)]).take(sources)
        return {**columns, **replaced}

    @staticmethod
    def _canonical(column: pa.Array, feature: InputFeature) -> pa.Array:
        """Return a column of lists of ids, or of numbers, which keep their precision."""
        canonical = to_canonical(column, feature)
        if isinstance(feature, PooledFeature) or not pa.types.is_float32(column.type):
            return canonical
        return column


def _is_empty(kind: pa.DataType) -> bool:
    """Return whether a type is that of lists without values."""
    return bool(pa.types.is_large_list(kind) and pa.types.is_null(kind.value_type))
