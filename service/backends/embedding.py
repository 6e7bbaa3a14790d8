"""Embeddings of one half of the features beside its numbers, looked up in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ranking.encoding.batch import EncodedBatch, Float32, Int64, RaggedIds
from ranking.encoding.request_batch import FeatureGroup
from ranking.schema import SingleFeature


class Embedding:
    """Looks up one half of the features.

    Neighbouring features of one width share a flat table: one look-up for all of them, since each costs more for being
    a call than for its rows.

    Args:
        columns: the half.
        weights: of the graph; ``embedding.TABLE`` [rows, dim] float32.
    """

    def __init__(self, columns: FeatureGroup, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        runs = [list(run) for _, run in itertools.groupby(columns.singles, lambda feature: feature.dim)]
        self._runs = [(len(run), _run(run, weights)) for run in runs]
        self._bags = [_pooled(weights[f"embedding.{bag.table}"], mean=bag.pooling == "mean") for bag in columns.bags]
        self.width = len(columns.joined)

    def __call__(self, inputs: EncodedBatch) -> Float32:
        """[rows, width]: single features, bags, numbers."""
        parts, start = [], 0
        for count, look_up in self._runs:
            parts.append(look_up(inputs.ids[:, start : start + count]))
            start += count
        parts += [look_up(bag) for look_up, bag in zip(self._bags, inputs.bags, strict=True)]
        return np.concatenate([*parts, inputs.dense], 1)


def _run(features: Sequence[SingleFeature], weights: Mapping[str, npt.NDArray[Any]]) -> Callable[[Int64], Float32]:
    """Looks up neighbouring features of one width: [rows, features] → [rows, features · width]."""
    tables = {feature.table: weights[f"embedding.{feature.table}"] for feature in features}
    firsts = dict(zip(tables, itertools.accumulate(map(len, tables.values()), initial=0), strict=False))
    flat, starts = np.concatenate(list(tables.values())), np.array([firsts[feature.table] for feature in features])
    width = len(features) * flat.shape[1]

    def look_up(ids: Int64) -> Float32:
        found: Float32 = flat.take(ids + starts, 0, mode="clip").reshape(len(ids), width)  # clip: without a buffer
        return found

    return look_up


def _pooled(table: Float32, *, mean: bool) -> Callable[[RaggedIds], Float32]:
    """Looks up lists of ids: sums or means [rows, width]; of an empty list 0."""

    def look_up(bag: RaggedIds) -> Float32:
        pooled = np.zeros((len(bag.lengths), table.shape[1]), np.float32)
        filled = np.flatnonzero(bag.lengths)
        lengths = bag.lengths[filled]
        sums = np.add.reduceat(table.take(bag.values, 0, mode="clip"), np.cumsum(lengths) - lengths)
        pooled[filled] = sums / lengths[:, None] if mean else sums
        return pooled

    return look_up
