"""Estimate of the memory that a training needs, compared with the available memory before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from pipelines.config.config import Config
from ranking.errors import ConfigError
from ranking.schema import BucketsFeature, Schema, SparseFeature

FLOAT_BYTES = 4
OPTIMIZER_COPIES = 4
"""Values per dense parameter: weight, gradient and the two moments of AdamW."""
ADAGRAD_SUMS = 1
"""Values per row of an embedding table, besides its weights."""
ACTIVATION_COPIES = 3
"""Values per unit of a layer and row: output, mask of dropout or ReLU, and gradient."""
BUFFERED_BLOCKS = 4
"""Shuffle blocks that are in memory at most; see ``training.shuffle_rows``."""

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def require_memory(config: Config, table_sizes: Mapping[str, int] | None = None, rows: int | None = None) -> None:
    """Check that a training fits into the available memory of this machine.

    Args:
        config: the whole configuration.
        table_sizes: rows of each embedding table; default: those of hashed tables, and nothing for vocabularies.
        rows: number of training rows; None if unknown.

    Raises:
        ConfigError: it does not; names the settings that need most memory.
    """
    available = available_memory()
    if available is None:
        return
    parts = estimate_memory(config, hashed_table_sizes(config) if table_sizes is None else table_sizes, rows)
    total = sum(parts.values())
    if total > available:
        largest = max(parts, key=lambda part: parts[part])
        raise ConfigError(
            f"training needs about {format_bytes(total)} of memory, but {format_bytes(available)} are available: "
            f"reduce {largest}, which needs {format_bytes(parts[largest])}"
        )


def hashed_table_sizes(config: Config) -> dict[str, int]:
    """Return the rows of the embedding tables whose size the configuration sets."""
    sizes = {name: _hash_buckets(feature) for name, feature in config.training_schema.tables.items()}
    return {name: size for name, size in sizes.items() if size is not None}


def estimate_memory(config: Config, table_sizes: Mapping[str, int], rows: int | None = None) -> dict[str, int]:
    """Return the bytes that a training needs on this machine, by the settings that determine them.

    Under torchrun, the tables are divided among the ranks.
    """
    ranks, local_ranks = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    schema, model, training = config.training_schema, config.model, config.training
    parts: dict[str, int] = {}
    for name, feature in schema.tables.items():
        size = table_sizes.get(name, 0)
        setting = f"hash_buckets = {size:,}" if _hash_buckets(feature) else f"{size:,} ids"
        key = f"feature '{feature.name}' ({setting}, dim = {feature.dim:,})"
        parts[key] = FLOAT_BYTES * size * (feature.dim + ADAGRAD_SUMS) * local_ranks // ranks
    width = _input_width(schema)
    experts = _Layers(model.num_experts, width, model.expert_layers)
    towers = _Layers(len(schema.tasks), model.expert_layers[-1], (*model.tower_layers, 1))
    layers = {
        f"model.experts = {model.num_experts:,} or model.expert_layers = {list(model.expert_layers)}": experts,
        f"model.tower_layers = {list(model.tower_layers)}": towers,
    }
    if model.side_tower is not None:
        side = (*model.side_tower.layers, len(schema.tasks))
        layers[f"model.side_tower.layers = {list(model.side_tower.layers)}"] = _Layers(1, width, side)
    batch = training.batch_size if rows is None else min(training.batch_size, rows)
    for key, network in layers.items():
        parts[key] = FLOAT_BYTES * OPTIMIZER_COPIES * network.parameters * local_ranks
    if rows is not None:
        value_bytes = FLOAT_BYTES * ACTIVATION_COPIES * batch * local_ranks // ranks
        for key, network in layers.items():
            parts[f"training.batch_size = {training.batch_size:,} or {key}"] = value_bytes * network.units
        parts[f"training.batch_size = {training.batch_size:,}"] = value_bytes * width
        buffered = BUFFERED_BLOCKS * min(training.shuffle_rows, rows)
        row_bytes = 8 * (len(schema.features) + 1) + FLOAT_BYTES * (len(schema.tasks) + 1)
        parts[f"training.shuffle_rows = {training.shuffle_rows:,}"] = buffered * row_bytes * local_ranks
    return parts


class _Layers:
    """Sizes of some fully connected networks of the same shape."""

    def __init__(self, count: int, inputs: int, widths: Sequence[int]) -> None:
        self.parameters = count * sum((a + 1) * b for a, b in pairwise((inputs, *widths)))
        self.units = count * sum(widths)


def _input_width(schema: Schema) -> int:
    """Return the width of the model's input, with all bins and a missing indicator for each number."""
    return sum(feature.dim for feature in schema.sparse) + sum(2 + feature.bins for feature in schema.numerics)


def _hash_buckets(feature: SparseFeature) -> int | None:
    return None if isinstance(feature, BucketsFeature) else feature.hash_buckets


def available_memory() -> int | None:
    """Return the bytes that this process may still allocate, by machine and container; None if unknown."""
    limits = [limit for limit in (_free_in_machine(), _free_in_container()) if limit is not None]
    return min(limits, default=None)


def _free_in_machine() -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _free_in_container() -> int | None:
    """Return what the limit of the control group (version 2) leaves; file caches do not count, they are reclaimed."""
    try:
        limit, used = int((CGROUP / "memory.max").read_text()), int((CGROUP / "memory.current").read_text())
        statistics = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return limit - used + int(statistics.get("inactive_file", 0)) + int(statistics.get("active_file", 0))
    except (OSError, ValueError):  # no control group, or "max" for no limit
        return None


def format_bytes(size: int) -> str:
    """Return a size with a decimal unit."""
    for exponent, unit in enumerate(("B", "kB", "MB", "GB", "TB")):
        if size < 1000 ** (exponent + 1):
            return f"{size / 1000**exponent:.3g} {unit}"
    return f"{size // 1000**5:,} PB"
