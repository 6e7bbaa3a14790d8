"""Groups of rows by the value of a feature, collected batch by batch with 4 bytes per row."""

from __future__ import annotations

import itertools
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.encoding.batch import EncodedBatch
from ranking.encoding.encoder import Encoder
from ranking.encoding.id_rows import MISSING, OOV
from ranking.encoding.vocabulary import IdArray
from ranking.schema import CrossFeature, NumberFeature, Owner, Schema

MAX_VALUES = 20
"""Maximum number of values of a slice that form their own group."""
QUANTILE_GROUPS = 5
"""Number of groups with equally many rows for a number with more than ``MAX_VALUES`` distinct values."""
NULL, REST = "missing", "other"
"""Names of the groups of null values and of values beyond the most frequent ones."""
ABSENT = "missing"
"""Name of the slice that scores all rows as if the row of the user, or of the item, were absent from its table."""


class Slice(Protocol):
    """Rows grouped by a value.

    Attributes:
        name: name of the feature, or ``new_user`` or ``new_item``.
    """

    name: str

    def add(self, table: pa.Table, inputs: EncodedBatch) -> None:
        """Append rows.

        Args:
            table: the rows with all feature columns.
            inputs: the same rows, encoded.
        """

    def extend(self, other: Self) -> None:
        """Append the rows of another slice of the same name."""

    def groups(self) -> dict[str, IdArray]:
        """Return the row indices of each value; "other" holds the less frequent values and "missing" the nulls."""


def make_slice(name: str, encoder: Encoder) -> Slice:
    """Create an empty slice for a name in ``Schema.sliceable``."""
    schema = encoder.schema
    for feature in schema.features:
        if feature.name == name and not isinstance(feature, CrossFeature):
            if isinstance(feature, NumberFeature):
                return _NumericSlice(name, feature.column)
            return _CategoricalSlice(name, feature.column)
    id_feature = schema.id_feature("user" if name == "new_user" else "item")
    assert id_feature is not None
    return _NoveltySlice(name, schema.categoricals.index(id_feature))


def simulates_absence(name: str, schema: Schema) -> bool:
    """Return whether a name in ``Schema.sliceable`` is ``ABSENT`` and not a feature of that name."""
    return name == ABSENT and all(feature.name != name for feature in schema.features)


def without_row(table: pa.Table, schema: Schema, owner: Owner) -> pa.Table:
    """Return rows whose features of an owner are null, except for its id and for counters and histories."""
    for name in schema.columns_of(owner):
        column = table.schema.get_field_index(name)
        table = table.set_column(column, name, pa.nulls(len(table), table.schema.field(column).type))
    return table


class _CategoricalSlice:
    """Rows grouped by the values of a categorical feature.

    Args:
        name: name of the feature.
        column: column of its values.
    """

    def __init__(self, name: str, column: str) -> None:
        self.name = name
        self._column = column
        self._codes: dict[object, int] = {}
        self._parts: list[npt.NDArray[np.int32]] = []

    def add(self, table: pa.Table, inputs: EncodedBatch) -> None:  # noqa: ARG002
        column = table[self._column].combine_chunks()
        if pa.types.is_null(column.type):
            self._parts.append(np.full(len(column), -1, np.int32))
            return
        encoded = column.dictionary_encode()
        codes = [self._codes.setdefault(value, len(self._codes)) for value in encoded.dictionary.to_pylist()]
        indices = encoded.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)
        self._parts.append(np.array([*codes, -1], np.int32)[indices])

    def extend(self, other: Self) -> None:
        codes = [self._codes.setdefault(value, len(self._codes)) for value in other._codes]
        self._parts += [np.array([*codes, -1], np.int32)[part] for part in other._parts]

    def groups(self) -> dict[str, IdArray]:
        codes = np.concatenate(self._parts)
        values = list(self._codes)
        counts = np.bincount(codes[codes >= 0], minlength=len(values))
        frequent = sorted(range(len(values)), key=lambda code: (-counts[code], str(values[code])))[:MAX_VALUES]
        groups = {_group_name(str(values[code])): np.flatnonzero(codes == code) for code in frequent}
        rest = np.flatnonzero((codes >= 0) & ~np.isin(codes, frequent))
        return _without_empty({**groups, REST: rest, NULL: np.flatnonzero(codes < 0)})


class _NumericSlice:
    """Rows grouped by the values of a number, or by its quantiles if it has more than ``MAX_VALUES`` values.

    Args:
        name: name of the feature.
        column: column of its values.
    """

    def __init__(self, name: str, column: str) -> None:
        self.name = name
        self._column = column
        self._parts: list[npt.NDArray[np.float32]] = []

    def add(self, table: pa.Table, inputs: EncodedBatch) -> None:  # noqa: ARG002
        column = table[self._column].combine_chunks().cast(pa.float64(), safe=False)
        self._parts.append(column.to_numpy(zero_copy_only=False).astype(np.float32))

    def extend(self, other: Self) -> None:
        self._parts += other._parts

    def groups(self) -> dict[str, IdArray]:
        numbers = np.concatenate(self._parts)
        is_null = np.isnan(numbers)
        distinct = np.unique(numbers[~is_null])
        if len(distinct) <= MAX_VALUES:
            groups = {
                np.format_float_positional(value, trim="-"): np.flatnonzero(numbers == value) for value in distinct
            }
        else:
            quantiles = np.quantile(numbers[~is_null], np.linspace(0, 1, QUANTILE_GROUPS + 1)[1:-1])
            edges = sorted({float(f"{edge:.4g}") for edge in quantiles})  # rounded as in the names of the groups
            bins = np.searchsorted(edges, numbers, side="right")
            texts = [f"{edge:g}" for edge in edges]
            between = [f"{low} – {high}" for low, high in itertools.pairwise(texts)]
            names = [f"< {texts[0]}", *between, f"≥ {texts[-1]}"]
            groups = {name: np.flatnonzero((bins == i) & ~is_null) for i, name in enumerate(names)}
        return _without_empty({**groups, NULL: np.flatnonzero(is_null)})


class _NoveltySlice:
    """Rows grouped by whether the id of the user or item has its own row in the embedding table.

    Args:
        name: ``new_user`` or ``new_item``.
        feature: index of the id feature among the categorical features.
    """

    def __init__(self, name: str, feature: int) -> None:
        self.name = name
        self._feature = feature
        self._parts: list[npt.NDArray[np.int32]] = []

    def add(self, table: pa.Table, inputs: EncodedBatch) -> None:  # noqa: ARG002
        self._parts.append(inputs.ids[:, self._feature].astype(np.int32))

    def extend(self, other: Self) -> None:
        self._parts += other._parts

    def groups(self) -> dict[str, IdArray]:
        ids = np.concatenate(self._parts)
        groups = {"old": ids > OOV, "new": ids == OOV, NULL: ids == MISSING}
        return _without_empty({name: np.flatnonzero(mask) for name, mask in groups.items()})


def _without_empty(groups: dict[str, IdArray]) -> dict[str, IdArray]:
    return {name: rows for name, rows in groups.items() if len(rows)}


def _group_name(value: str) -> str:
    """Quote a value that equals the name of a special group."""
    return f'"{value}"' if value in (REST, NULL) else value
