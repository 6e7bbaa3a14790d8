"""Embedding tables in training: each learns by row-wise Adagrad inside its backward pass, whole or sharded over ranks.

A step touches only the rows of its batch, so its cost does not grow with the vocabulary. TorchRec and FBGEMM do it all.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim import RowWiseAdagrad
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from pipelines.training.distributed import DistContext
from ranking.model.embeddings import Embeddings

SHARDINGS = ["table_wise", "row_wise", "column_wise"]
"""Not data_parallel: every rank would hold the whole table."""

MEMORY_LEFT = 0.15
"""Share of a device's memory that the planner leaves to all else."""

logging.getLogger("torchrec.distributed.planner").setLevel(logging.ERROR)  # it advises on machines we do not have


class EmbeddingTables:
    """The tables of a model and the state of their optimiser; replaces ``embeddings.collection`` by one that learns.

    Args:
        embeddings: of the model; changed in place.
        rate: step size.
        batch_size: rows a rank, by which the planner weighs costs.
        world: over which the tables are sharded.
    """

    def __init__(self, embeddings: Embeddings, rate: float, batch_size: int, world: DistContext) -> None:
        self._world = world
        whole: Any = embeddings.collection
        self._collection: Any
        self._optimiser: Any
        self._names = [config.name for config in whole.embedding_bag_configs()]
        self._collection, self._optimiser = whole, None  # of a schema without a sparse feature
        if self._names and world.size == 1:
            self._collection = FusedEmbeddingBagCollection(
                tables=whole.embedding_bag_configs(),
                optimizer_type=RowWiseAdagrad,
                optimizer_kwargs={"lr": rate},
                device=world.device,
            )
            self._optimiser = self._collection.fused_optimizer()
            self.load({name: bag.weight.detach() for name, bag in whole.embedding_bags.items()})
        elif self._names:
            self._collection = _sharded(whole, rate, batch_size, world)
            self._optimiser = self._collection.fused_optimizer
        embeddings.collection = self._collection

    def set_rate(self, rate: float) -> None:
        """Changes the step size from the next backward pass on."""
        if self._optimiser is not None:
            for group in self._optimiser.param_groups:
                group["lr"] = rate
            self._optimiser.step()  # hands the rate to the kernels, which made their updates in the backward pass

    def state(self) -> dict[str, Any]:
        """Name → tensor or ShardedTensor of every table's weights and Adagrad sums; load in place."""
        state = {f"tables.{name}.weight": weight for name, weight in self._weights().items()}
        sums = self._optimiser.state_dict()["state"] if self._optimiser is not None else {}
        for parts in sums.values():
            for key, value in parts.items():  # TABLE.weight.momentum_1 or, sharded, TABLE.momentum1
                state[f"tables.{key.split('.')[0]}.momentum"] = value
        return state

    def whole(self) -> dict[str, Tensor] | None:
        """Table → weights [rows, dim], gathered on the first rank; None on the others."""
        if self._world.size == 1:
            return {name: weight.detach() for name, weight in self._weights().items()}
        gathered = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchRec's tensors are of a kind that PyTorch means to replace
            for name, weight in self._weights().items():
                out = torch.empty(weight.size(), device=self._world.device) if self._world.first else None
                weight.gather(dst=0, out=out)
                gathered[name] = out
        return gathered if self._world.first else None

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Sets the weights of each table [rows, dim]; a rank takes its own part of them."""
        for name, mine in self._weights().items():
            if self._world.size == 1:
                mine.detach().copy_(weights[name])
                continue
            for shard in mine.local_shards():
                (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                shard.tensor.detach().copy_(weights[name][row : row + rows, column : column + columns])

    def _weights(self) -> dict[str, Any]:
        state = self._collection.state_dict() if self._names else {}
        return {name: state[f"embedding_bags.{name}.weight"] for name in self._names}


def _sharded(whole: Any, rate: float, batch_size: int, world: DistContext) -> DistributedModelParallel:
    apply_optimizer_in_backward(RowWiseAdagrad, whole.parameters(), {"lr": rate})
    constraint = ParameterConstraints(sharding_types=SHARDINGS, compute_kernels=["fused"])
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=world.size, compute_device=world.device.type),
        constraints={config.name: constraint for config in whole.embedding_bag_configs()},
        batch_size=batch_size,
        storage_reservation=FixedPercentageStorageReservation(MEMORY_LEFT),
    )
    sharder = EmbeddingBagCollectionSharder()
    return DistributedModelParallel(
        whole,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=world.device,
        plan=planner.collective_plan(whole, [sharder], dist.group.WORLD),
        sharders=[sharder],
        init_data_parallel=False,  # the rest of the model is wrapped anew whenever experts are dropped
    )
