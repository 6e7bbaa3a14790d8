"""Encoded rows → the numbers that the first layer reads: embeddings side by side, then dense values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from ranking.encoding import Inputs
from ranking.halves import Columns
from ranking.schema import SingleFeature

Floats = npt.NDArray[np.float32]


class Embedding:
    """Looks up one half of the features.

    Neighbouring features of one width share a flat table: one look-up for all of them, since each costs more for being
    a call than for its rows.

    Args:
        columns: the half.
        weights: of the graph; ``embedding.TABLE`` [rows, dim] float32.
    """

    def __init__(self, columns: Columns, weights: Mapping[str, Tensor]) -> None:
        self._runs = [_Run(list(run), weights) for _, run in itertools.groupby(columns.singles, lambda f: f.dim)]
        self._bags = [(weights[f"embedding.{bag.table}"], bag.pooling) for bag in columns.bags]
        self.width = len(columns.joined)

    def __call__(self, inputs: Inputs) -> Floats:
        """[rows, width] float32."""
        parts, start = [], 0
        for run in self._runs:
            parts.append(run(inputs.ids[:, start : start + run.count]))
            start += run.count
        for (table, pooling), bag in zip(self._bags, inputs.bags, strict=True):
            starts = torch.cumsum(bag.lengths, 0) - bag.lengths
            parts.append(F.embedding_bag(bag.values, table, starts, mode=pooling))
        joined: Floats = torch.cat([*parts, inputs.dense], 1).numpy()
        return joined


class _Run:
    """Neighbouring features of one width."""

    def __init__(self, features: Sequence[SingleFeature], weights: Mapping[str, Tensor]) -> None:
        self.count, self._width = len(features), sum(feature.dim for feature in features)
        tables = {feature.table: weights[f"embedding.{feature.table}"] for feature in features}
        starts = dict(zip(tables, itertools.accumulate(map(len, tables.values()), initial=0), strict=False))
        self._table = torch.cat(list(tables.values()))
        self._starts = torch.tensor([starts[feature.table] for feature in features])

    def __call__(self, ids: Tensor) -> Tensor:
        return F.embedding(ids + self._starts, self._table).view(len(ids), self._width)
