"""Embedding tables in training: row-wise Adagrad fused into the backward pass, on one process or sharded over ranks.

A step updates only the rows of its batch, so that its cost does not grow with the vocabulary. Each rank allocates,
initializes and restores its shards only, so that the tables need not fit into the memory of one machine. Implemented
with TorchRec and FBGEMM.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
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
from pipelines.training.tensor_file import BLOCK_ROWS, TensorBlocks
from ranking.encoding.id_rows import OOV
from ranking.encoding.vocabulary import stable_hash
from ranking.model.embeddings import INITIAL_STD, PREFIX, TABLES, Embeddings

SPLIT_BYTES = 4 * 2**20
"""Size from which a table is split by row, so that the ranks need the same memory; the planner balances time only."""

RESERVED_MEMORY = 0.15
"""Fraction of each device's memory that the sharding planner reserves for everything but the tables."""

logging.getLogger("torchrec.distributed.planner").setLevel(logging.ERROR)  # its hardware advice does not apply here


@dataclass(frozen=True)
class _Part:
    """The rows of a table that one rank holds.

    Attributes:
        rank: the rank that holds them.
        start: the first row.
        stop: the row after the last one.
        weights: their weights [stop − start, dim]; None on other ranks.
        sums: their sums of squared gradients [stop − start]; None on other ranks.
    """

    rank: int
    start: int
    stop: int
    weights: Tensor | None
    sums: Tensor | None


class EmbeddingTables:
    """The embedding tables of a model and their optimizer state.

    Replaces ``embeddings.collection`` with a collection that updates its weights in the backward pass.

    Args:
        embeddings: the model's embeddings; modified in place. The weights of their tables are not used.
        learning_rate: initial learning rate.
        batch_size: rows per rank and step, for the cost model of the sharding planner.
        context: the ranks over which the tables are sharded.
        seed: determines the initial weights, together with the name of the table, and not the number of ranks.
        weights: weights [known rows, dim] of the first rows of each table, instead of random ones; the other rows
            become copies of the OOV row.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        learning_rate: float,
        batch_size: int,
        context: DistContext,
        seed: int,
        weights: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._context = context
        plain: Any = embeddings.collection
        configs = plain.embedding_bag_configs()
        sizes = ((config.num_embeddings, config.embedding_dim) for config in configs)
        self._shapes = dict(zip(embeddings.tables, sizes, strict=True))
        self._collection: Any
        self._optimizer: Any
        self._collection, self._optimizer = plain, None  # for a schema without sparse features
        if configs and context.world_size == 1:
            self._collection = FusedEmbeddingBagCollection(
                tables=configs,
                optimizer_type=RowWiseAdagrad,
                optimizer_kwargs={"lr": learning_rate},
                device=context.device,
            )
            self._optimizer = self._collection.fused_optimizer()
        elif configs:
            self._collection = _shard(plain, learning_rate, batch_size, context)
            self._optimizer = self._collection.fused_optimizer
        embeddings.collection = self._collection
        for name, parts in self._parts().items():
            for part in parts:
                if part.weights is not None and weights is None:
                    _draw(part.weights, part.start, self._shapes[name], f"{seed}/{name}")
                elif part.weights is not None and weights is not None:
                    _copy(part.weights, weights[name][part.start : part.stop], weights[name][OOV])

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the next backward pass."""
        if self._optimizer is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()  # passes the rate to the kernels; the weights were updated in the backward pass

    def state(self) -> dict[str, Any]:
        """Return the weights and Adagrad sums of all tables by name; load into these tensors in place."""
        state = {f"tables.{name}.weight": weight for name, weight in self._weights().items()}
        return state | {f"tables.{name}.momentum": sums for name, sums in self._sums().items()}

    def weights(self) -> dict[str, TensorBlocks]:
        """Return the weights [rows, dim] of each table; the main rank can read them, see ``TensorBlocks``."""
        return {name: self._readable(parts, "weights", self._shapes[name]) for name, parts in self._parts().items()}

    def sums(self) -> dict[str, TensorBlocks]:
        """Return the sums of squared gradients [rows] of each table; the main rank can read them."""
        return {name: self._readable(parts, "sums", self._shapes[name][:1]) for name, parts in self._parts().items()}

    @torch.no_grad()
    def load_sums(self, sums: Mapping[str, Tensor]) -> None:
        """Set the sums [known rows] of the first rows of each table; new rows have the mean of the known ones.

        A new row then takes steps as small as those of a known id. With a sum of 0, its first step would have the size
        of the learning rate, whatever its gradient.
        """
        for name, parts in self._parts().items():
            if name in sums:
                known = sums[name].numpy()
                mean = float(known.sum(dtype=np.float64)) / max(int(np.count_nonzero(known)), 1)
                for part in parts:
                    if part.sums is not None:
                        _copy(part.sums, sums[name][part.start : part.stop], mean)

    def _readable(self, parts: Sequence[_Part], content: str, shape: tuple[int, ...]) -> TensorBlocks:
        """Return the weights or the sums of a table of this shape."""
        return TensorBlocks(shape, partial(self._blocks, parts, content, shape[1:]))

    def _blocks(self, parts: Sequence[_Part], content: str, width: tuple[int, ...]) -> Iterator[Tensor]:
        """Yield the rows of a table in order on the main rank; the other ranks send theirs and yield nothing."""
        context = self._context
        for part in parts:
            held: Tensor | None = getattr(part, content)
            for start in range(part.start, part.stop, BLOCK_ROWS):
                stop = min(start + BLOCK_ROWS, part.stop)
                if held is not None:
                    rows = held[start - part.start : stop - part.start]
                    if context.is_main:
                        yield rows
                    else:
                        dist.send(rows, 0)
                elif context.is_main:
                    rows = torch.empty(stop - start, *width, device=context.device)
                    dist.recv(rows, part.rank)
                    yield rows

    def _parts(self) -> dict[str, list[_Part]]:
        """Return the parts of each table on all ranks, by row."""
        weights, sums = self._weights(), self._sums()
        if self._context.world_size > 1:
            return {name: _parts_of(weights[name], sums.get(name)) for name in weights}
        return {
            name: [_Part(0, 0, len(weight), weight.detach(), sums[name].detach())] for name, weight in weights.items()
        }

    def _weights(self) -> dict[str, Any]:
        state = self._collection.state_dict() if self._shapes else {}
        return {name: state[f"{TABLES}{PREFIX}{name}.weight"] for name in self._shapes}

    def _sums(self) -> dict[str, Any]:
        """Return Adagrad's sums by table; sharded, a rank lacks those of tables that other ranks hold as a whole."""
        states = self._optimizer.state_dict()["state"].values() if self._optimizer is not None else ()
        entries = (entry for state in states for entry in state.items())
        # MODULE.weight.momentum_1 or, sharded, MODULE.momentum1
        return {key.split(".")[0].removeprefix(PREFIX): sums for key, sums in entries}


def _parts_of(weights: Any, sums: Any) -> list[_Part]:
    """Return the parts of a table, by row.

    Args:
        weights: the ``ShardedTensor`` of its weights.
        sums: that of its sums; None if this rank holds no part.
    """
    own_weights, own_sums = (
        {} if sharded is None else {s.metadata.shard_offsets[0]: s.tensor.detach() for s in sharded.local_shards()}
        for sharded in (weights, sums)
    )
    parts = []
    for shard in weights.metadata().shards_metadata:
        start, rows = shard.shard_offsets[0], shard.shard_sizes[0]
        if rows:  # The last ranks may have none.
            parts.append(
                _Part(shard.placement.rank(), start, start + rows, own_weights.get(start), own_sums.get(start))
            )
    return sorted(parts, key=lambda part: part.start)


def _draw(weights: Tensor, start: int, shape: tuple[int, int], seed: str) -> None:
    """Fill rows with random weights, which depend only on the seed, their numbers, and the shape of the table.

    Args:
        weights: the rows [rows, dim].
        start: number of the first row.
        shape: shape of the whole table.
        seed: seed of the table.
    """
    stop = start + len(weights)
    for block in range(start - start % BLOCK_ROWS, stop, BLOCK_ROWS):
        generator = torch.Generator().manual_seed(stable_hash(f"{seed}/{block}"))
        rows = torch.empty(min(BLOCK_ROWS, shape[0] - block), shape[1]).normal_(std=INITIAL_STD, generator=generator)
        first, last = max(block, start), min(block + BLOCK_ROWS, stop)
        weights[first - start : last - start] = rows[first - block : last - block]


def _copy(rows: Tensor, known: Tensor, other: Tensor | float) -> None:
    """Fill the first rows with the known ones, and the others with the same value."""
    rows[: len(known)] = known
    rows[len(known) :] = other


class _Sharder(EmbeddingBagCollectionSharder):  # type: ignore[misc]
    """Shards by row on CPUs, too, which gloo can do as long as all ranks have batches of the same size."""

    def sharding_types(self, compute_device_type: str) -> list[str]:  # noqa: ARG002 — same interface
        """Return the sharding types that the planner may choose."""
        return ["table_wise", "row_wise"]


def _constraint(config: Any) -> ParameterConstraints:
    """Return how a table may be sharded: never replicated, and large ones by row."""
    size = config.num_embeddings * config.embedding_dim * torch.float32.itemsize
    return ParameterConstraints(
        sharding_types=["row_wise" if size >= SPLIT_BYTES else "table_wise"], compute_kernels=["fused"]
    )


def _shard(plain: Any, learning_rate: float, batch_size: int, context: DistContext) -> DistributedModelParallel:
    """Distribute a collection over the ranks, as planned by TorchRec."""
    apply_optimizer_in_backward(RowWiseAdagrad, plain.parameters(), {"lr": learning_rate})
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=context.world_size, compute_device=context.device.type),
        constraints={config.name: _constraint(config) for config in plain.embedding_bag_configs()},
        batch_size=batch_size,
        storage_reservation=FixedPercentageStorageReservation(RESERVED_MEMORY),
    )
    sharder = _Sharder()
    return DistributedModelParallel(
        plain,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=context.device,
        plan=planner.collective_plan(plain, [sharder], dist.group.WORLD),
        sharders=[sharder],
        init_data_parallel=False,  # data_parallel() wraps the rest of the model, again whenever experts are removed
    )
