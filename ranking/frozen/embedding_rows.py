"""Rows of embedding tables in float32, float16 or int8.

``embedding.TABLE`` [rows, dim] holds the numbers. A table of int8 also has ``embedding.TABLE.scale`` [rows] float32:
the value of a row is its numbers times its scale. Every backend computes with these values in float32 or more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from ranking.encoding.batch import Float32, Int64

RowType = Literal["float32", "float16", "int8"]
ROW_TYPES: tuple[RowType, ...] = get_args(RowType)

PREFIX, SCALE = "embedding.", ".scale"
"""Start of the names of tables among the weights, and end of the names of their scales."""
INT8_MAX = 127

Weights = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class EmbeddingRows:
    """An embedding table.

    Attributes:
        numbers: numbers of the rows [rows, dim] float32, float16 or int8.
        scale: scale of each row [rows] float32; None unless the numbers are int8.
    """

    numbers: npt.NDArray[Any]
    scale: Float32 | None = None

    @classmethod
    def of(cls, weights: Weights, table: str) -> Self:
        """Return a table among the weights of a frozen graph."""
        return cls(weights[f"{PREFIX}{table}"], weights.get(f"{PREFIX}{table}{SCALE}"))

    @staticmethod
    def concat(tables: Sequence[EmbeddingRows]) -> EmbeddingRows:
        """Join tables of one type and width."""
        scales = [table.scale for table in tables if table.scale is not None]
        numbers = np.concatenate([table.numbers for table in tables])
        return EmbeddingRows(numbers, np.concatenate(scales) if scales else None)

    def take(self, ids: Int64) -> Float32:
        """Return the values of rows.

        Args:
            ids: rows, of any shape; they must be in range.

        Returns:
            Values [*shape of ids, dim] float32.
        """
        # mode="clip" only avoids the buffering of the default mode
        values: Float32 = self.numbers.take(ids, 0, mode="clip").astype(np.float32, copy=False)
        if self.scale is not None:
            values *= self.scale.take(ids, mode="clip")[..., None]
        return values

    @property
    def values(self) -> Float32:
        """Values of all rows [rows, dim] float32; shares the memory of float32 numbers."""
        values: Float32 = self.numbers.astype(np.float32, copy=False)
        return values if self.scale is None else values * self.scale[:, None]


def decoded(weights: Weights) -> dict[str, npt.NDArray[Any]]:
    """Return the weights with the values of embedding tables in float32, and without scales."""
    tables = {name.removeprefix(PREFIX).removesuffix(SCALE) for name in weights if name.startswith(PREFIX)}
    rest = {name: weight for name, weight in weights.items() if not name.startswith(PREFIX)}
    return rest | {f"{PREFIX}{table}": EmbeddingRows.of(weights, table).values for table in sorted(tables)}


def encoded(weights: Weights, row_type: RowType) -> dict[str, npt.NDArray[Any]]:
    """Return float32 weights with embedding tables of another type.

    The scale of an int8 row maps its largest absolute value to ``INT8_MAX``; numbers are rounded to nearest.
    """
    result = dict(weights)
    for name, weight in weights.items():
        if not name.startswith(PREFIX):
            continue
        if row_type == "int8":
            scale = (np.abs(weight).max(1, initial=0.0) / INT8_MAX).astype(np.float32)
            result[name] = np.rint(weight / np.where(scale > 0, scale, 1.0)[:, None]).astype(np.int8)
            result[f"{name}{SCALE}"] = scale
        else:
            result[name] = weight.astype(row_type)
    return result
