"""Embedding tables in training: row-wise Adagrad fused into the backward pass, on one process or sharded over ranks.

A step updates only the rows of its batch, so that its cost does not grow with the vocabulary. Implemented with TorchRec
and FBGEMM.
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
from ranking.model.embeddings import PREFIX, TABLES, Embeddings

SHARDING_TYPES = ["table_wise", "row_wise", "column_wise"]
"""Sharding types that the planner may choose; data_parallel would replicate every table on every rank."""

RESERVED_MEMORY = 0.15
"""Fraction of each device's memory that the sharding planner reserves for everything but the tables."""

logging.getLogger("torchrec.distributed.planner").setLevel(logging.ERROR)  # its hardware advice does not apply here


class EmbeddingTables:
    """The embedding tables of a model and their optimizer state.

    Replaces ``embeddings.collection`` with a collection that updates its weights in the backward pass.

    Args:
        embeddings: the model's embeddings; modified in place.
        learning_rate: initial learning rate.
        batch_size: rows per rank and step, for the cost model of the sharding planner.
        context: the ranks over which the tables are sharded.
    """

    def __init__(self, embeddings: Embeddings, learning_rate: float, batch_size: int, context: DistContext) -> None:
        self._context = context
        plain: Any = embeddings.collection
        self._collection: Any
        self._optimizer: Any
        self._names = [config.name.removeprefix(PREFIX) for config in plain.embedding_bag_configs()]
        self._collection, self._optimizer = plain, None  # for a schema without sparse features
        if self._names and context.world_size == 1:
            self._collection = FusedEmbeddingBagCollection(
                tables=plain.embedding_bag_configs(),
                optimizer_type=RowWiseAdagrad,
                optimizer_kwargs={"lr": learning_rate},
                device=context.device,
            )
            self._optimizer = self._collection.fused_optimizer()
            self.load({name: embeddings.weight(name).detach() for name in self._names})
        elif self._names:
            self._collection = _shard(plain, learning_rate, batch_size, context)
            self._optimizer = self._collection.fused_optimizer
        embeddings.collection = self._collection

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the next backward pass."""
        if self._optimizer is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()  # passes the rate to the kernels; the weights were updated in the backward pass

    def state(self) -> dict[str, Any]:
        """Return the weights and Adagrad sums of all tables by name; load into these tensors in place."""
        state = {f"tables.{name}.weight": weight for name, weight in self._weights().items()}
        sums = self._optimizer.state_dict()["state"] if self._optimizer is not None else {}
        for entries in sums.values():
            for key, value in entries.items():  # MODULE.weight.momentum_1 or, sharded, MODULE.momentum1
                state[f"tables.{key.split('.')[0].removeprefix(PREFIX)}.momentum"] = value
        return state

    def gather(self) -> dict[str, Tensor] | None:
        """Gather the weights [rows, dim] of each table on the main rank; return None on the others."""
        if self._context.world_size == 1:
            return {name: weight.detach() for name, weight in self._weights().items()}
        gathered = {name: self._gather(weight) for name, weight in self._weights().items()}
        return gathered if self._context.is_main else None

    def gather_sums(self) -> dict[str, Tensor]:
        """Gather the sums of squared gradients [rows] of each table on the main rank; the others return nothing.

        A table that is sharded by column has one sum per row and shard and is left out.
        """
        sums = self._row_sums()
        if self._context.world_size == 1:
            return sums
        # The state of a table that one rank holds is missing on the others, so that they cannot gather it by table.
        own = {
            name: [(shard.metadata.shard_offsets[0], shard.tensor.cpu()) for shard in value.local_shards()]
            for name, value in sums.items()
        }
        shards_by_rank = [own] * self._context.world_size if self._context.is_main else None
        torch.distributed.gather_object(own, shards_by_rank, dst=0)
        gathered: dict[str, Tensor] = {}
        weights = self._weights()
        for shards in shards_by_rank or ():
            for name, parts in shards.items():
                values = gathered.setdefault(name, torch.zeros(self._shape(weights[name])[0]))
                for start, rows in parts:
                    values[start : start + len(rows)] = rows
        return gathered

    @torch.no_grad()
    def load_sums(self, sums: Mapping[str, Tensor]) -> None:
        """Set the sums [known rows] of the first rows of each table; new rows have the mean of the known ones.

        A new row then takes steps as small as those of a known id. With a sum of 0, its first step would have the size
        of the learning rate, whatever its gradient.
        """
        for name, target in self._row_sums().items():
            if name not in sums:
                continue
            trained = sums[name][sums[name] > 0]
            values = torch.full(self._shape(target), float(trained.mean()) if len(trained) else 0.0)
            values[: len(sums[name])] = sums[name]
            if self._context.world_size == 1:
                target.copy_(values)
                continue
            for shard in target.local_shards():
                start, rows = shard.metadata.shard_offsets[0], shard.metadata.shard_sizes[0]
                shard.tensor.detach().copy_(values[start : start + rows])

    def _row_sums(self) -> dict[str, Any]:
        """Return Adagrad's sums of the tables that have one per row: a tensor or, sharded, a ``ShardedTensor``."""
        state, weights = self.state(), self._weights()
        sums = {name: state.get(f"tables.{name}.momentum") for name in self._names}
        return {
            name: value
            for name, value in sums.items()
            if value is not None and self._shape(value) == self._shape(weights[name])[:1]
        }

    def _shape(self, value: Any) -> tuple[int, ...]:
        """Return the shape of a tensor or, on several ranks, of a ``ShardedTensor``, whose ``size()`` is deprecated."""
        return tuple(value.size() if self._context.world_size == 1 else value.metadata().size)

    def _gather(self, value: Any) -> Tensor:
        """Gather a ``ShardedTensor`` on the main rank; the others get an empty tensor."""
        out = torch.empty(self._shape(value) if self._context.is_main else 0, device=self._context.device)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch deprecates ShardedTensor, which TorchRec uses
            value.gather(dst=0, out=out if self._context.is_main else None)
        return out

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Set the weights [rows, dim] of each table; a rank copies its shards."""
        for name, target in self._weights().items():
            if self._context.world_size == 1:
                target.detach().copy_(weights[name])
                continue
            for shard in target.local_shards():
                (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                shard.tensor.detach().copy_(weights[name][row : row + rows, column : column + columns])

    def _weights(self) -> dict[str, Any]:
        state = self._collection.state_dict() if self._names else {}
        return {name: state[f"{TABLES}{PREFIX}{name}.weight"] for name in self._names}


def _shard(plain: Any, learning_rate: float, batch_size: int, context: DistContext) -> DistributedModelParallel:
    """Distribute a collection over the ranks, as planned by TorchRec."""
    apply_optimizer_in_backward(RowWiseAdagrad, plain.parameters(), {"lr": learning_rate})
    constraint = ParameterConstraints(sharding_types=SHARDING_TYPES, compute_kernels=["fused"])
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=context.world_size, compute_device=context.device.type),
        constraints={config.name: constraint for config in plain.embedding_bag_configs()},
        batch_size=batch_size,
        storage_reservation=FixedPercentageStorageReservation(RESERVED_MEMORY),
    )
    sharder = EmbeddingBagCollectionSharder()
    return DistributedModelParallel(
        plain,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=context.device,
        plan=planner.collective_plan(plain, [sharder], dist.group.WORLD),
        sharders=[sharder],
        init_data_parallel=False,  # data_parallel() wraps the rest of the model, again whenever experts are removed
    )
