"""Rows by the value of a feature, gathered batch by batch as one number of 4 bytes a row."""

from __future__ import annotations

import itertools
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.encoding.batch import EncodedBatch
from ranking.encoding.encoder import Encoder
from ranking.encoding.vocabulary import MISSING, OOV, IdArray
from ranking.schema import NumberFeature

SHOWN = 20
"""Values of a slice that are measured by themselves."""
BUCKETS = 5
"""Parts of equally many rows that a number with more values is cut into."""
NULL, REST = "missing", "other"


class Slice(Protocol):
    """Rows by value.

    Attributes:
        name: the feature, or ``new_user`` or ``new_item``.
    """

    name: str

    def add(self, table: pa.Table, inputs: EncodedBatch) -> None:
        """Takes in a completed table and its encoding."""

    def groups(self) -> dict[str, IdArray]:
        """Value → positions of its rows; null is "missing", and values beyond the 20 most frequent are "other"."""


def make_slice(name: str, encoder: Encoder) -> Slice:
    """An empty slice by one of ``Schema.sliceable``."""
    schema = encoder.schema
    for feature in schema.features:
        if feature.name == name:
            return _ByNumber(feature) if isinstance(feature, NumberFeature) else _ByValue(feature)
    known = schema.id_feature("user" if name == "new_user" else "item")
    assert known is not None
    return _ByNovelty(name, schema.categoricals.index(known))


class _ByValue:
    """By the values of a categorical feature."""

    def __init__(self, feature: Any) -> None:
        self.name: str = feature.name
        self._column = feature.column
        self._codes: dict[Any, int] = {}
        self._parts: list[npt.NDArray[np.int32]] = []

    def add(self, table: pa.Table, inputs: EncodedBatch) -> None:  # noqa: ARG002 — one interface
        column = table[self._column].combine_chunks()
        if pa.types.is_null(column.type):
            self._parts.append(np.full(len(column), -1, np.int32))
            return
        encoded = column.dictionary_encode()
        codes = [self._codes.setdefault(value, len(self._codes)) for value in encoded.dictionary.to_pylist()]
        indices = encoded.indices.fill_null(len(codes)).to_numpy(zero_copy_only=False)
        self._parts.append(np.array([*codes, -1], np.int32)[indices])

    def groups(self) -> dict[str, IdArray]:
        codes = np.concatenate(self._parts)
        values = list(self._codes)
        counts = np.bincount(codes[codes >= 0], minlength=len(values))
        shown = sorted(range(len(values)), key=lambda code: (-counts[code], str(values[code])))[:SHOWN]
        names = {code: _quoted(str(values[code])) for code in shown}
        found = {names[code]: np.flatnonzero(codes == code) for code in shown}
        return _with_rest(found, np.flatnonzero((codes >= 0) & ~np.isin(codes, shown)), np.flatnonzero(codes < 0))


class _ByNumber:
    """By the values of a number if it has few of them, else by the quantiles of the rows at hand."""

    def __init__(self, feature: NumberFeature) -> None:
        self.name: str = feature.name
        self._column = feature.column
        self._parts: list[npt.NDArray[np.float32]] = []

    def add(self, table: pa.Table, inputs: EncodedBatch) -> None:  # noqa: ARG002 — one interface
        column = table[self._column].combine_chunks().cast(pa.float64())
        self._parts.append(column.to_numpy(zero_copy_only=False).astype(np.float32))

    def groups(self) -> dict[str, IdArray]:
        numbers = np.concatenate(self._parts)
        unknown = np.isnan(numbers)
        distinct = np.unique(numbers[~unknown])
        if len(distinct) <= SHOWN:
            found = {
                np.format_float_positional(value, trim="-"): np.flatnonzero(numbers == value) for value in distinct
            }
        else:
            inner = np.quantile(numbers[~unknown], np.linspace(0, 1, BUCKETS + 1)[1:-1])
            edges = sorted({float(f"{edge:.4g}") for edge in inner})  # as they are shown
            buckets = np.searchsorted(edges, numbers, side="right")
            texts = [f"{edge:g}" for edge in edges]
            between = [f"{low} – {high}" for low, high in itertools.pairwise(texts)]
            names = [f"< {texts[0]}", *between, f"≥ {texts[-1]}"]
            found = {name: np.flatnonzero((buckets == i) & ~unknown) for i, name in enumerate(names)}
        return _with_rest(found, np.zeros(0, np.int64), np.flatnonzero(unknown))


class _ByNovelty:
    """By whether the user or item was seen in training: has a row of its own in the embedding table."""

    def __init__(self, name: str, feature: int) -> None:
        self.name = name
        self._feature = feature
        self._parts: list[npt.NDArray[np.int32]] = []

    def add(self, table: pa.Table, inputs: EncodedBatch) -> None:  # noqa: ARG002 — one interface
        self._parts.append(inputs.ids[:, self._feature].astype(np.int32))

    def groups(self) -> dict[str, IdArray]:
        rows = np.concatenate(self._parts)
        known = {"old": np.flatnonzero(rows > OOV), "new": np.flatnonzero(rows == OOV)}
        return _with_rest(known, np.zeros(0, np.int64), np.flatnonzero(rows == MISSING))


def _with_rest(found: dict[str, IdArray], rest: IdArray, unknown: IdArray) -> dict[str, IdArray]:
    """The values, then "other" and "missing"; values without a row are left out."""
    return {name: rows for name, rows in {**found, REST: rest, NULL: unknown}.items() if len(rows)}


def _quoted(value: str) -> str:
    """A value that is called like the rest or null, told apart from them."""
    return f'"{value}"' if value in (REST, NULL) else value
