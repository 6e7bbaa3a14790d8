"""Embedding tables; the only module of ``ranking`` that imports TorchRec."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchRec's imports warn about PyTorch features that are not used here.
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType

from ranking.encoding.torch_batch import TorchBatch
from ranking.schema import Schema

logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)  # TorchRec calls a renamed PyTorch function.

INITIAL_STD = 0.01
"""Standard deviation of initial embeddings; the following batch norm sets their scale."""


class Embeddings(nn.Module):
    """Look up and pool every sparse feature.

    Args:
        schema: features.
        sizes: number of rows of each embedding table.
    """

    def __init__(self, schema: Schema, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.names = [feature.name for feature in schema.sparse]
        self.widths = [feature.dim for feature in schema.sparse]
        self.width = sum(self.widths)
        self._num_categorical = len(schema.categoricals)
        pooling = dict.fromkeys(schema.tables, PoolingType.SUM)  # One id per row: every pooling gives the same result.
        pooling |= {bag.table: PoolingType[bag.pooling.upper()] for bag in schema.bags}
        # Grouped by pooling, because TorchRec's fused tables assume that order of outputs.
        tables = sorted(schema.tables.items(), key=lambda table: pooling[table[0]] is PoolingType.MEAN)
        self.collection = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=name,
                    embedding_dim=first.dim,
                    num_embeddings=sizes[name],
                    feature_names=[feature.name for feature in schema.sparse if feature.table == name],
                    pooling=pooling[name],
                    init_fn=lambda weight: nn.init.normal_(weight, std=INITIAL_STD),
                )
                for name, first in tables
            ]
        )

    def forward(self, inputs: TorchBatch) -> Tensor:
        """Concatenate embeddings [batch, width]: categorical features, then bags, in order of declaration."""
        if not self.names:
            return inputs.dense.new_zeros(len(inputs), 0)
        values = torch.cat([inputs.ids.T.flatten(), *(bag.values for bag in inputs.bags)])
        ones = inputs.ids.new_ones(self._num_categorical * len(inputs))
        lengths = torch.cat([ones, *(bag.lengths for bag in inputs.bags)])
        pooled = self.collection(KeyedJaggedTensor(keys=self.names, values=values, lengths=lengths)).to_dict()
        return torch.cat([pooled[name] for name in self.names], 1)

    def weight(self, table: str) -> Tensor:
        """Return the weights of one table [rows, dim]."""
        weight: Tensor = self.collection.embedding_bags[table].weight
        return weight
