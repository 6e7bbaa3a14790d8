"""Embedding tables; the only module of ``ranking`` that imports TorchRec."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

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

TABLES = "embedding_bags."
"""Part of the name of the weights of every embedding table, before the name of the table."""
PREFIX = "table:"
"""Start of the name of a table's module. A table can be named like an attribute of the modules, such as ``type``."""


def stored_name(name: str) -> str:
    """Return the name of a tensor in files, which contains the name of a table instead of that of its module."""
    return name.replace(f"{TABLES}{PREFIX}", TABLES)


class Embeddings(nn.Module):
    """Look up and pool every sparse feature.

    The state dict contains the names of the tables: ``collection.embedding_bags.TABLE.weight``.

    Args:
        schema: features.
        sizes: number of rows of each embedding table.
        device: device of the tables; default: the CPU. On "meta", they need no memory until they are replaced.
    """

    def __init__(self, schema: Schema, sizes: Mapping[str, int], device: str | None = None) -> None:
        super().__init__()
        self.names = [feature.name for feature in schema.sparse]
        self.tables = list(schema.tables)
        self.widths = [feature.dim for feature in schema.sparse]
        self.width = sum(self.widths)
        self._num_categorical = len(schema.categoricals)
        self._bags = schema.bags
        self.collection = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=f"{PREFIX}{name}",
                    embedding_dim=first.dim,
                    num_embeddings=sizes[name],
                    feature_names=[feature.name for feature in schema.sparse if feature.table == name],
                    pooling=PoolingType.SUM,
                    init_fn=lambda weight: nn.init.normal_(weight, std=INITIAL_STD),
                )
                for name, first in schema.tables.items()
            ],
            device=None if device is None else torch.device(device),
        )
        self.register_state_dict_post_hook(_name_tables)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_name_modules)  # type: ignore[no-untyped-call]

    def forward(self, inputs: TorchBatch) -> Tensor:
        """Concatenate embeddings [batch, width]: categorical features, then bags, in order of declaration."""
        if not self.names:
            return inputs.dense.new_zeros(len(inputs), 0)
        values = torch.cat([inputs.ids.T.flatten(), *(bag.values for bag in inputs.bags)])
        ones = inputs.ids.new_ones(self._num_categorical * len(inputs))
        lengths = torch.cat([ones, *(bag.lengths for bag in inputs.bags)])
        pooled = self.collection(KeyedJaggedTensor(keys=self.names, values=values, lengths=lengths)).to_dict()
        for bag, ids in zip(self._bags, inputs.bags, strict=True):
            if bag.pooling != "sum":
                pooled[bag.name] = pooled[bag.name] / bag.divisors(ids.lengths).unsqueeze(1)
        return torch.cat([pooled[name] for name in self.names], 1)

    def weight(self, table: str) -> Tensor:
        """Return the weights of one table [rows, dim]."""
        weight: Tensor = self.collection.embedding_bags[f"{PREFIX}{table}"].weight
        return weight


def _name_tables(_module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Replace the names of modules by those of tables."""
    for name in [name for name in state if name.startswith(prefix)]:
        state[stored_name(name)] = state.pop(name)


def _name_modules(_module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Replace the names of tables by those of modules."""
    for name in [name for name in state if name.startswith(prefix)]:
        state[name.replace(TABLES, f"{TABLES}{PREFIX}")] = state.pop(name)
