"""Generator of a feed log with known truth: latent factors of users and items, labels from a latent mixture of experts.

Every row has the true probability (or mean) of each label as ``true_TASK``, so that the best possible AUC and RMSE can
be computed. The same number of rows and the same seed give identical files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.datasets.write import counter, feature, task, write_logs
from ranking.artifacts.atomic_files import check_creatable

Array = npt.NDArray[np.float64]

FACTORS = 6
"""Number of latent factors of each user and item."""
EXPERTS = 4
"""Number of experts in the true mixture; each task mixes two of them."""
HIDDEN = 12
"""Number of hidden units of a true expert."""
DAYS = 10
"""Number of days in the log: eight train, one validates and one tests."""
MIN_EPOCH_STEPS = 150
"""Number of steps that gates need to select their experts."""
FIRST_DAY = date(2026, 1, 1)
"""First day of the log by default."""


@dataclass(frozen=True)
class Truth:
    """True model of one task.

    Attributes:
        name: name of the task.
        experts: the two true experts that the task mixes.
        level: base rate of a binary task; mean of a regression task.
        spread: standard deviation of the logit, or of the mean of a regression task.
        group: engagement or satisfaction.
        weight: loss weight in the ranker.toml; rare tasks have larger weights.
        noise: standard deviation of a regression label around its mean; 0 for a binary task.
        label_rate: fraction of the rows that have the label.
    """

    name: str
    experts: tuple[int, int]
    level: float
    spread: float
    group: str
    weight: float = 1.0
    noise: float = 0.0
    label_rate: float = 1.0


TRUTHS = (
    Truth("click", (0, 1), 0.40, 1.6, "engagement"),
    Truth("long_view", (0, 1), 0.20, 1.6, "engagement"),
    Truth("share", (0, 2), 0.02, 1.8, "engagement", weight=5.0),
    Truth("like", (2, 3), 0.05, 1.8, "satisfaction", weight=5.0),
    Truth("follow", (2, 3), 0.01, 1.8, "satisfaction", weight=10.0),
    Truth("dislike", (1, 3), 0.005, 1.8, "satisfaction", weight=10.0),
    Truth("watch_time", (0, 1), 2.0, 0.6, "engagement", noise=0.8),
    Truth("rating", (2, 3), 3.4, 0.6, "satisfaction", noise=0.7, label_rate=0.3),
)

COUNTED = ["click", "long_view", "like", "watch_time"]
"""Tasks whose labels the counters sum."""
OBJECTIVE = {"click": 1.0, "long_view": 1.0, "like": 5.0, "share": 10.0, "follow": 10.0, "dislike": -20.0}


def generate(
    out: Path,
    rows: int = 200_000,
    seed: int = 0,
    *,
    users: int | None = None,
    items: int | None = None,
    first_day: date = FIRST_DAY,
) -> None:
    """Write ``out/ranker.toml``, ``out/log/``, ``out/users.parquet`` and ``out/items.parquet``.

    Args:
        out: new folder.
        rows: number of impressions.
        seed: seed of all random draws.
        users: number of users; default: one per 20 impressions, at least 50.
        items: number of items; default: one per 100 impressions, at least 50.
        first_day: day of the first impressions.

    Raises:
        OutputError: ``out`` is not empty, or cannot be written.
    """
    check_creatable(out)
    random = np.random.default_rng(seed)
    user_table, user_factors = _users(users or max(50, rows // 20), random)
    item_table, item_factors = _items(items or max(50, rows // 100), random)
    user = random.choice(len(user_factors), rows, p=_power_law(len(user_factors), 0.6))
    item = random.choice(len(item_factors), rows, p=_power_law(len(item_factors), 0.8))
    second = np.sort(random.integers(DAYS * 86_400, size=rows))
    surface = random.choice(3, rows, p=[0.6, 0.3, 0.1])
    log: dict[str, Any] = {
        "time": np.datetime64(first_day, "ms") + (second * 1000).astype("timedelta64[ms]"),
        "user_id": user_table["user_id"].take(pa.array(user)),
        "item_id": item_table["item_id"].take(pa.array(item)),
        "surface": pa.array(np.array(["home", "search", "related"])[surface]),
        "hour": second // 3600 % 24,
    }
    x = np.hstack([user_factors[user], item_factors[item], user_factors[user] * item_factors[item], np.eye(3)[surface]])
    log |= _labels(x, random)
    write_logs(out, _config(rows, first_day), pa.table(log), users=user_table, items=item_table)


def _power_law(count: int, exponent: float) -> Array:
    """Return probabilities proportional to rank ** −exponent."""
    weights: Array = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    probabilities: Array = weights / weights.sum()
    return probabilities


def _users(count: int, random: np.random.Generator) -> tuple[pa.Table, Array]:
    """Return the user table and the latent factors; the table has noisy, grouped and partly missing factors."""
    factors = random.standard_normal((count, FACTORS))
    age = np.clip(np.round(35 + 10 * factors[:, 0] + 3 * random.standard_normal(count)), 13, 90)
    activity = np.exp(1.0 + 0.6 * factors[:, 1] + 0.2 * random.standard_normal(count))
    table = {
        "user_id": pa.array([f"u{i}" for i in range(count)]),
        "country": _group(factors[:, 2] + 0.2 * random.standard_normal(count), "C", 12),
        "segment": _group(factors[:, 3] + 0.2 * random.standard_normal(count), "S", 8),
        "age": pa.array(age, mask=random.random(count) < 0.05),
        "activity": pa.array(activity),
        "interests": _tags(factors[:, 4:], "topic", random),
    }
    return pa.table(table), factors


def _items(count: int, random: np.random.Generator) -> tuple[pa.Table, Array]:
    """Return the item table and the latent factors."""
    factors = random.standard_normal((count, FACTORS))
    price = np.exp(2.0 + 0.7 * factors[:, 0] + 0.2 * random.standard_normal(count))
    table = {
        "item_id": pa.array([f"v{i}" for i in range(count)]),
        "category": _group(factors[:, 1] + 0.2 * random.standard_normal(count), "K", 16),
        "author": pa.array([f"a{i}" for i in np.argsort(np.argsort(factors[:, 2])) // 5]),
        "price": pa.array(price, mask=random.random(count) < 0.05),
        "quality": pa.array(factors[:, 3] + 0.2 * random.standard_normal(count)),
        "topics": _tags(factors[:, 4:], "topic", random),
    }
    return pa.table(table), factors


def _group(values: Array, prefix: str, groups: int) -> pa.Array:
    """Return group names; groups contain adjacent values and have equal sizes."""
    rank = np.argsort(np.argsort(values))
    return pa.array([f"{prefix}{g}" for g in rank * groups // len(values)])


def _tags(factors: Array, prefix: str, random: np.random.Generator) -> pa.Array:
    """Return a noisy level of each factor as a tag, and sometimes an additional tag without meaning."""
    levels = np.clip(np.round((factors + 0.2 * random.standard_normal(factors.shape)) * 2 + 5), 0, 10).astype(int)
    noise = random.random(len(factors)) < 0.3
    return pa.array(
        [
            [f"{prefix}{f}_{level}" for f, level in enumerate(row)] + ([f"{prefix}_new"] if extra else [])
            for row, extra in zip(levels, noise, strict=True)
        ]
    )


def _labels(x: Array, random: np.random.Generator) -> dict[str, pa.Array]:
    """Return the labels and their true probabilities or means."""
    signal_of = _mixed_signals(x, random)
    columns: dict[str, pa.Array] = {}
    for truth in TRUTHS:
        signal = signal_of(truth)
        signal = truth.spread * standardize(signal)
        if truth.noise:
            mean = truth.level + signal
            label = mean + truth.noise * random.standard_normal(len(mean))
            label = np.expm1(np.maximum(label, 0.0)) if truth.name == "watch_time" else label
        else:
            mean = sigmoid(signal + bias_for(truth.level, signal))
            label = (random.random(len(mean)) < mean).astype(np.int8)
        columns[truth.name] = pa.array(label, mask=random.random(len(mean)) >= truth.label_rate)
        columns[f"true_{truth.name}"] = pa.array(mean)
    return columns


def _mixed_signals(x: Array, random: np.random.Generator) -> Callable[[Truth], Array]:
    """Return signals for which each task mixes its two experts and projects the mixture in its own way."""
    experts = [_expert(x, random) for _ in range(EXPERTS)]

    def signal(truth: Truth) -> Array:
        share = random.uniform(0.35, 0.65)
        first, second = truth.experts
        return (share * experts[first] + (1 - share) * experts[second]) @ random.standard_normal(HIDDEN)

    return signal


def _expert(x: Array, random: np.random.Generator) -> Array:
    """Return the output of a random tanh layer [rows, HIDDEN]."""
    outputs: Array = np.tanh(x @ (random.standard_normal((x.shape[1], HIDDEN)) / np.sqrt(x.shape[1])))
    return outputs


def standardize(signal: Array) -> Array:
    """Return signals with mean 0 and standard deviation 1 over the rows."""
    standardized: Array = (signal - signal.mean(0)) / np.maximum(signal.std(0), 1e-12)
    return standardized


def sigmoid(logits: Array) -> Array:
    """Return the probabilities of logits."""
    probabilities: Array = 1 / (1 + np.exp(-logits))
    return probabilities


def bias_for(rate: float, logits: Array) -> float:
    """Return the bias for which the mean probability equals the base rate, by bisection."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sigmoid(logits + middle).mean() < rate else (low, middle)
    return low


def batch_size(rows: int) -> int:
    """Return the largest power of two, from 32 to 512, that leaves an epoch enough steps.

    Batch norm needs at least 32 rows.
    """
    limit = rows * (DAYS - 2) // DAYS // MIN_EPOCH_STEPS
    return min(512, max(32, 1 << max(0, limit.bit_length() - 1)))


def split_days(first_day: date) -> dict[str, Any]:
    """Return the bounds of the splits, as ``[logs]`` has them: the last two days validate and test."""
    return {
        "validation_from": f"{first_day + timedelta(days=DAYS - 2)}T00:00:00",
        "test_from": f"{first_day + timedelta(days=DAYS - 1)}T00:00:00",
    }


def _config(rows: int, first_day: date) -> dict[str, Any]:
    log1p = {"transform": "log1p"}
    features = [
        feature("user_id", "categorical", "user"),
        feature("item_id", "categorical", "item"),
        feature("country", "categorical", "user"),
        feature("segment", "categorical", "user"),
        feature("age", "numeric", "user"),
        feature("activity", "numeric", "user", **log1p),
        feature("interests", "bag", "user", table="topic"),
        feature("category", "categorical", "item"),
        feature("author", "categorical", "item", min_count=2),
        feature("price", "numeric", "item", **log1p),
        feature("quality", "numeric", "item"),
        feature("topics", "bag", "item", table="topic"),
        feature("surface", "categorical", "context"),
        feature("hour", "categorical", "context", dim=8),
    ]
    tasks = [
        task(
            truth.name,
            "regression" if truth.noise else "binary",
            group=truth.group,
            weight=truth.weight,
            **(log1p if truth.name == "watch_time" else {}),
        )
        for truth in TRUTHS
    ]
    return {
        "name": "feed",
        "columns": {"time": "time", "user": "user_id", "item": "item_id"},
        "logs": split_days(first_day),
        "model": {"gate": {"kind": "dselect_k"}},
        "training": {"batch_size": batch_size(rows)},
        "serving": {"objective": OBJECTIVE},
        "counters": [counter([key], COUNTED) for key in ("user_id", "item_id")],
        "features": features,
        "tasks": tasks,
    }
