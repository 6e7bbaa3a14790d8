"""Generator of a log whose groups of tasks need different functions of the same inputs, to a given degree.

A shared network of a given cost is too narrow for the functions of all groups: in full conflict, one network per group
of the same total cost ranks better; without conflict, it ranks worse. Every row has the true probability of each label
as ``true_TASK``. The same number of rows and the same seed give identical files.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.datasets.synthetic import DAYS, FIRST_DAY, batch_size, bias_for, sigmoid, split_days, standardize
from pipelines.datasets.write import feature, task, write_logs
from ranking.artifacts.atomic_files import check_creatable

Array = npt.NDArray[np.float64]

GROUPS, TASKS_PER_GROUP = 8, 3
INPUTS = 32
"""Number of independent, standard normal inputs of a row."""
PRODUCTS = 6
"""Products of two random directions of the inputs that a group of tasks combines."""
COMMON = 0.8
"""Share of the variance of a task's combination that the tasks of a group have in common."""
SPREAD = 2.0
"""Standard deviation of a logit."""
RATES = (0.4, 0.15)
"""Base rates, in turn."""
TASKS = tuple(f"{chr(ord('a') + group)}{number}" for group in range(GROUPS) for number in range(1, TASKS_PER_GROUP + 1))
"""Names of the tasks: the letter is that of the group."""


def generate(out: Path, conflict: float, rows: int = 200_000, seed: int = 0, *, first_day: date = FIRST_DAY) -> None:
    """Write ``out/ranker.toml`` and ``out/log/``.

    Args:
        out: new folder.
        conflict: share of the variance of the logits that comes from products of a task's own group; the rest comes
            from products that all groups share.
        rows: number of impressions.
        seed: seed of all random draws.
        first_day: day of the first impressions.

    Raises:
        OutputError: ``out`` is not empty, or cannot be written.
    """
    check_creatable(out)
    random = np.random.default_rng(seed)
    x = random.standard_normal((rows, INPUTS))
    second = np.sort(random.integers(DAYS * 86_400, size=rows))
    log: dict[str, Any] = {
        "time": np.datetime64(first_day, "ms") + (second * 1000).astype("timedelta64[ms]"),
        "user_id": random.integers(max(50, rows // 20), size=rows),
        "item_id": random.integers(max(50, rows // 100), size=rows),
    }
    log |= {f"x{column}": values for column, values in enumerate(x.T)}
    log |= _labels(x, conflict, random)
    write_logs(out, _config(rows, first_day), pa.table(log))


def _labels(x: Array, conflict: float, random: np.random.Generator) -> dict[str, Array]:
    """Return the labels and their true probabilities."""
    shared = _signals(x, len(TASKS), random)
    own = np.concatenate([_signals(x, TASKS_PER_GROUP, random) for _ in range(GROUPS)], 1)
    columns: dict[str, Array] = {}
    for position, name in enumerate(TASKS):
        mixed = np.sqrt(conflict) * own[:, position] + np.sqrt(1 - conflict) * shared[:, position]
        logit = SPREAD * standardize(mixed)
        truth = sigmoid(logit + bias_for(RATES[position % len(RATES)], logit))
        columns[name] = (random.random(len(x)) < truth).astype(np.int8)
        columns[f"true_{name}"] = truth
    return columns


def _signals(x: Array, tasks: int, random: np.random.Generator) -> Array:
    """Return combinations of the same products for some tasks [rows, tasks], with standard deviation 1."""
    directions = random.standard_normal((2, INPUTS, PRODUCTS))
    products = standardize((x @ directions[0]) * (x @ directions[1]))
    common, own = random.standard_normal((PRODUCTS, 1)), random.standard_normal((PRODUCTS, tasks))
    return standardize(products @ (np.sqrt(COMMON) * common + np.sqrt(1 - COMMON) * own))


def _config(rows: int, first_day: date) -> dict[str, Any]:
    return {
        "name": "conflict",
        "columns": {"time": "time", "user": "user_id", "item": "item_id"},
        "logs": split_days(first_day),
        "model": {
            "experts": 24,
            "expert_layers": [34],
            "tower_layers": [8],
            "reading": "side_by_side",
            "gate": {"kind": "dselect_k", "k": 2, "experts_budget": 16},
        },
        "training": {"batch_size": min(256, batch_size(rows)), "learning_rate": {"trunk": 1.5e-2}},
        "features": [feature(f"x{column}", "numeric", "context", bins=0) for column in range(INPUTS)],
        "tasks": [task(name, "binary", group=name[0]) for name in TASKS],
    }
