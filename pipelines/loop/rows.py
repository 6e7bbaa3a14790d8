"""Rows of a joined log: candidates with the feature values that scored them, under the names of the schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.loop.attribution import LabelColumns
from pipelines.loop.served_version import ServedVersion
from ranking.encoding.columns import coalesce, to_canonical
from ranking.encoding.feature_table import FeatureTable
from ranking.encoding.vocabulary import IdArray
from ranking.errors import InvalidInputError, LogError, single_line
from ranking.schema import InputFeature, NumberFeature, PooledFeature
from ranking.served_log.reader import ServedCandidates, ServedFile
from ranking.served_log.schema import TIME, ServedColumn, stored_column

POSITION, REQUEST, MODEL, VERSION = "position", "request_id", "model", "version"
"""Columns about the answer; a feature or label with such a name replaces the column."""


class RowLayout:
    """Columns of the rows of a run.

    Args:
        files: the files of the run; one model, any versions.
        versions: the versions by name, oldest first.
        labels: columns that feedback determines.

    Attributes:
        labels: columns that feedback determines.
    """

    def __init__(
        self, files: Sequence[ServedFile], versions: Mapping[str, ServedVersion], labels: LabelColumns
    ) -> None:
        self._versions, self.labels = versions, labels
        self.columns = list(versions.values())[-1].schema.columns
        self._features: dict[str, InputFeature] = {}
        for version in versions.values():
            counter_columns = version.schema.counter_columns
            for feature in version.schema.inputs:
                if feature.column not in {*counter_columns, self.columns.user, self.columns.item}:
                    self._features.setdefault(feature.column, feature)
        computed = {
            feature.column: feature for version in versions.values() for feature in version.schema.counter_features
        }
        self._computed_types = {name: _computed_type(feature, files) for name, feature in computed.items()}
        self._types = {name: self._type(name, feature, files) for name, feature in self._features.items()}
        ids = (("user_id", self.columns.user), ("item_id", self.columns.item))
        self._id_types = {name: _common([_element(file, stored) for file in files]) for stored, name in ids}

    def rows(self, file: ServedFile, candidates: ServedCandidates) -> pa.Table:
        """Return rows without labels.

        Raises:
            LogError: a value in the file does not fit its feature.
        """
        try:
            return pa.table(self._columns(file, candidates))
        except (InvalidInputError, pa.ArrowException) as error:
            raise LogError(
                f"{file.path}: does not fit version {file.version} of {file.model} ({single_line(error)}); restore the "
                "bundle of that version or move the file away"
            ) from None

    def _columns(self, file: ServedFile, candidates: ServedCandidates) -> dict[str, pa.Array]:
        version, names, rows = self._versions[file.version], self.columns, len(candidates.request)
        columns: dict[str, pa.Array] = {
            POSITION: pa.array(candidates.positions),
            REQUEST: candidates.shared("request_id"),
            MODEL: pa.repeat(file.model, rows),
            VERSION: pa.repeat(file.version, rows),
        }
        times = candidates.shared("time").cast(TIME).cast(pa.int64()).to_numpy()
        columns[names.time] = version.times(times, file.zone)
        columns[names.user] = candidates.shared("user_id").cast(self._id_types[names.user])
        columns[names.item] = candidates.items("item_id").cast(self._id_types[names.item])
        if names.request is not None:
            columns[names.request] = candidates.shared("request_id")
        if names.weight is not None:
            columns[names.weight] = pa.nulls(rows, pa.float64())
        logged = {column.name: column for column in file.columns}
        ids = {"user": columns[names.user], "item": columns[names.item]}
        for name, feature in self._features.items():
            values = pa.nulls(rows)
            if name in logged:
                table = version.tables.get(feature.owner) if feature.owner in ids else None
                values = _values(candidates, logged[name], feature, table, ids.get(feature.owner))
            columns[name] = values.cast(self._types[name])
        for feature in version.schema.counter_features:
            if feature.column in logged:
                values = candidates.feature(logged[feature.column])
                columns[feature.column] = values.cast(self._computed_types[feature.column])
        return columns

    def _type(self, name: str, feature: InputFeature, files: Sequence[ServedFile]) -> pa.DataType:
        """Return the type of a column in all versions."""
        if isinstance(feature, NumberFeature):
            return pa.float64()
        types = [self._canonical(_element(file, stored_column(feature.owner, name)), feature) for file in files]
        for version in self._versions.values():
            table = version.tables.get(feature.owner) if feature.owner in version.tables else None
            if table is not None and name in table.table.column_names:
                types.append(self._canonical(table.table.schema.field(name).type, feature))
        if not isinstance(feature, PooledFeature):
            return _common(types)
        return pa.large_list(_common([kind.value_type for kind in types if not pa.types.is_null(kind)]))

    @staticmethod
    def _canonical(kind: pa.DataType, feature: InputFeature) -> pa.DataType:
        return to_canonical(pa.nulls(0, kind), feature).type


def _values(
    candidates: ServedCandidates,
    column: ServedColumn,
    feature: InputFeature,
    table: FeatureTable | None,
    ids: pa.Array | None,
) -> pa.Array:
    """Return the values of a feature: those of the file, and of the bundle where the file says so."""
    values = to_canonical(candidates.feature(column), feature)
    from_bundle: npt.NDArray[np.bool_] = candidates.from_bundle(column)
    if table is None or ids is None or not from_bundle.any():
        return values
    rows: IdArray = np.flatnonzero(from_bundle)
    stored = table.columns(ids.take(pa.array(rows)), [column.name]).get(column.name)
    if stored is None:
        return values
    places = np.zeros(len(values), np.int64)
    places[rows] = np.arange(len(rows))
    return coalesce(values, to_canonical(stored, feature).take(pa.array(places, mask=~from_bundle)), feature)


def _element(file: ServedFile, name: str) -> pa.DataType:
    """Return the type of one value of a column; null if the file does not have it."""
    if name not in file.stored.names:
        return pa.null()
    kind = file.stored.field(name).type
    return kind.value_type if name.startswith("item") else kind


def _computed_type(feature: InputFeature, files: Sequence[ServedFile]) -> pa.DataType:
    """Return the type of a counter or history: float32 as computed, or double if a request sent the value."""
    types = [_element(file, stored_column(feature.owner, feature.column)) for file in files]
    if isinstance(feature, NumberFeature):
        return pa.float64() if pa.float64() in types else pa.float32()
    ids = [kind.value_type for kind in types if not pa.types.is_null(kind)]
    return pa.large_list(_common(ids) if ids else pa.null())


def _common(types: Sequence[pa.DataType]) -> pa.DataType:
    """Return the type of ids: that of all columns, or text if they differ or are all null."""
    kinds = {kind for kind in types if not pa.types.is_null(kind)}
    return kinds.pop() if len(kinds) == 1 else pa.string()


def add_labels(rows: pa.Table, labels: pa.Table, is_row: pa.ChunkedArray) -> pa.Table:
    """Add label columns to candidates, and leave out those that do not become a row."""
    for name in labels.column_names:
        if name in rows.column_names:
            rows = rows.drop_columns([name])
        rows = rows.append_column(name, labels[name])
    return rows.filter(is_row)
