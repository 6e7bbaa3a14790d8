"""Embedding tables: the one module of the library that imports TorchRec."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchRec's imports warn of features of PyTorch that we do not use
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType

from ranking.encoding.torch_batch import TorchBatch
from ranking.schema import Schema

logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)  # TorchRec calls what PyTorch has renamed

INITIAL_STD = 0.01
"""Embeddings start near zero; the batch norm behind them sets their scale."""


class Embeddings(nn.Module):
    """Looks up and pools every sparse feature.

    Args:
        schema: the features.
        sizes: embedding table → its rows.
    """

    def __init__(self, schema: Schema, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.names = [feature.name for feature in schema.sparse]
        self.widths = [feature.dim for feature in schema.sparse]
        self.width = sum(self.widths)
        self._num_categorical = len(schema.categoricals)
        pooling = dict.fromkeys(schema.tables, PoolingType.SUM)  # of one id a row, which any pooling leaves as it is
        pooling |= {bag.table: PoolingType[bag.pooling.upper()] for bag in schema.bags}
        # those of one pooling together: TorchRec's fused tables take the outputs to come in that order
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
        """Embeddings side by side [batch, width]: categorical features, then bags, in order of declaration."""
        if not self.names:
            return inputs.dense.new_zeros(len(inputs), 0)
        values = torch.cat([inputs.ids.T.flatten(), *(bag.values for bag in inputs.bags)])
        ones = inputs.ids.new_ones(self._num_categorical * len(inputs))
        lengths = torch.cat([ones, *(bag.lengths for bag in inputs.bags)])
        pooled = self.collection(KeyedJaggedTensor(keys=self.names, values=values, lengths=lengths)).to_dict()
        return torch.cat([pooled[name] for name in self.names], 1)

    def weight(self, table: str) -> Tensor:
        """Weights of one table [rows, dim]."""
        weight: Tensor = self.collection.embedding_bags[table].weight
        return weight
