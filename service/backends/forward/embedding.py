"""Encoded rows → the numbers that the first layer reads: embeddings side by side, then dense values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from ranking.encoding.request_batch import FeatureGroup
    from ranking.encoding.torch_batch import TorchBatch
    from ranking.schema import SingleFeature


class Embedding(nn.Module):
    """Looks up one half of the features.

    Neighbouring features of one width share a flat table: one look-up for all of them, since each costs more for being
    a call than for its rows.

    Args:
        columns: the half.
        weights: of the graph; ``embedding.TABLE`` [rows, dim] float32.
    """

    def __init__(self, columns: FeatureGroup, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        runs = [list(run) for _, run in itertools.groupby(columns.singles, lambda feature: feature.dim)]
        self._counts = [len(run) for run in runs]
        self.runs = nn.ModuleList(_Run(run, weights) for run in runs)
        self.bags = nn.ModuleList(_Bag(weights[f"embedding.{bag.table}"], bag.pooling) for bag in columns.bags)
        self.width = len(columns.joined)

    def forward(self, inputs: TorchBatch) -> Tensor:
        """[rows, width] float32. Values of a bag that lie behind the last row's are not looked at."""
        parts, start = [], 0
        for run, count in zip(self.runs, self._counts, strict=True):
            parts.append(run(inputs.ids[:, start : start + count]))
            start += count
        parts += [look_up(bag.values, bag.lengths) for look_up, bag in zip(self.bags, inputs.bags, strict=True)]
        return torch.cat([*parts, inputs.dense], 1)


class _Run(nn.Module):
    """Neighbouring features of one width; ``starts`` are the first rows of their tables in the flat one."""

    table: Tensor
    starts: Tensor

    def __init__(self, features: Sequence[SingleFeature], weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        tables = {feature.table: weights[f"embedding.{feature.table}"] for feature in features}
        firsts = dict(zip(tables, itertools.accumulate(map(len, tables.values()), initial=0), strict=False))
        self.register_buffer("table", torch.cat(list(tables.values())))
        self.register_buffer("starts", torch.tensor([firsts[feature.table] for feature in features]))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids + self.starts, self.table).flatten(1)


class _Bag(nn.Module):
    table: Tensor

    def __init__(self, table: Tensor, pooling: str) -> None:
        super().__init__()
        self.register_buffer("table", table)
        self._pooling = pooling

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        starts = F.pad(torch.cumsum(lengths, 0), (1, 0))  # and of one more, to which the values behind the last belong
        return F.embedding_bag(values, self.table, starts, mode=self._pooling)[:-1]
