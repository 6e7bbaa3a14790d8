"""A generated feed log with a known truth: latent factors of users and items, labels from a latent mixture of experts.

Every row carries the true probability (or mean) of each label as ``true_TASK``, so that the best possible AUC and RMSE
can be computed. The same rows and seed give the same files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.datasets.write import feature, task, write_logs
from ranking.artifacts.atomic_files import check_creatable

Array = npt.NDArray[np.float64]

FACTORS = 6
"""Latent factors of a user and of an item."""
EXPERTS = 4
"""Experts of the true mixture; each task mixes two of them."""
HIDDEN = 12
"""Units of a true expert."""
DAYS = 10
"""Eight train, one validates, one tests."""
EPOCH_STEPS = 150
"""Steps that gates need to choose their experts."""
FIRST_DAY = datetime(2026, 1, 1)


@dataclass(frozen=True)
class Truth:
    """One task of the generator.

    Attributes:
        name: the task.
        experts: the two true experts that it mixes.
        level: base rate of a binary task; mean of a regression.
        spread: standard deviation of the logit, or of the mean of a regression.
        group: engagement or satisfaction.
        weight: loss weight in the ranker.toml; rarer tasks weigh more.
        noise: standard deviation of a regression's label around its mean; 0 for a binary task.
        known: share of the rows in which the label is known at all.
    """

    name: str
    experts: tuple[int, int]
    level: float
    spread: float
    group: str
    weight: float = 1.0
    noise: float = 0.0
    known: float = 1.0


TRUTHS = (
    Truth("click", (0, 1), 0.40, 1.6, "engagement"),
    Truth("long_view", (0, 1), 0.20, 1.6, "engagement"),
    Truth("share", (0, 2), 0.02, 1.8, "engagement", weight=5.0),
    Truth("like", (2, 3), 0.05, 1.8, "satisfaction", weight=5.0),
    Truth("follow", (2, 3), 0.01, 1.8, "satisfaction", weight=10.0),
    Truth("dislike", (1, 3), 0.005, 1.8, "satisfaction", weight=10.0),
    Truth("watch_time", (0, 1), 2.0, 0.6, "engagement", noise=0.8),
    Truth("rating", (2, 3), 3.4, 0.6, "satisfaction", noise=0.7, known=0.3),
)

OBJECTIVE = {"click": 1.0, "long_view": 1.0, "like": 5.0, "share": 10.0, "follow": 10.0, "dislike": -20.0}


def generate(
    out: Path,
    rows: int = 200_000,
    seed: int = 0,
    conflict: float | None = None,
    *,
    users: int | None = None,
    items: int | None = None,
) -> None:
    """Writes ``out/ranker.toml``, ``out/log/``, ``out/users.parquet`` and ``out/items.parquet``.

    Args:
        out: new folder.
        rows: impressions.
        seed: of everything that is drawn.
        conflict: how far tasks disagree, from 0 (all follow one signal) to 1 (tasks that share no true expert follow
            independent signals): signals of tasks with other experts correlate at 1 − conflict, those with the same
            experts at 1. Default: every task mixes its two experts in its own way.
        users: how many there are; default: one for 20 impressions, at least 50.
        items: how many there are; default: one for 100 impressions, at least 50.

    Raises:
        OutputError: ``out`` holds something already, or cannot be written.
    """
    check_creatable(out)
    random = np.random.default_rng(seed)
    of_users, user_factors = _users(users or max(50, rows // 20), random)
    of_items, item_factors = _items(items or max(50, rows // 100), random)
    user = random.choice(len(user_factors), rows, p=_power_law(len(user_factors), 0.6))
    item = random.choice(len(item_factors), rows, p=_power_law(len(item_factors), 0.8))
    second = np.sort(random.integers(DAYS * 86_400, size=rows))
    surface = random.choice(3, rows, p=[0.6, 0.3, 0.1])
    log: dict[str, Any] = {
        "time": np.datetime64(FIRST_DAY, "ms") + (second * 1000).astype("timedelta64[ms]"),
        "user_id": of_users["user_id"].take(pa.array(user)),
        "item_id": of_items["item_id"].take(pa.array(item)),
        "surface": pa.array(np.array(["home", "search", "related"])[surface]),
        "hour": second // 3600 % 24,
    }
    x = np.hstack([user_factors[user], item_factors[item], user_factors[user] * item_factors[item], np.eye(3)[surface]])
    log |= _labels(x, conflict, random)
    write_logs(out, _config(rows), pa.table(log), users=of_users, items=of_items)


def _power_law(count: int, exponent: float) -> Array:
    """Probabilities that fall with the rank's power."""
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def _users(count: int, random: np.random.Generator) -> tuple[pa.Table, Array]:
    """Users as a table, and their latent factors; the table shows the factors through noise, groups and gaps."""
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
    """Items as a table, and their latent factors."""
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
    """Names of equally large groups of neighbouring values."""
    rank = np.argsort(np.argsort(values))
    return pa.array([f"{prefix}{g}" for g in rank * groups // len(values)])


def _tags(factors: Array, prefix: str, random: np.random.Generator) -> pa.Array:
    """Two tags for each row, a noisy level of each factor, and sometimes one that means nothing."""
    levels = np.clip(np.round((factors + 0.2 * random.standard_normal(factors.shape)) * 2 + 5), 0, 10).astype(int)
    noise = random.random(len(factors)) < 0.3
    return pa.array(
        [
            [f"{prefix}{f}_{level}" for f, level in enumerate(row)] + ([f"{prefix}_new"] if extra else [])
            for row, extra in zip(levels, noise, strict=True)
        ]
    )


def _labels(x: Array, conflict: float | None, random: np.random.Generator) -> dict[str, pa.Array]:
    """Labels and their truth from the latent mixture."""
    signal_of = _mixed_signals(x, random) if conflict is None else _conflicting_signals(x, conflict, random)
    columns: dict[str, pa.Array] = {}
    for truth in TRUTHS:
        signal = signal_of(truth)
        signal = truth.spread * (signal - signal.mean()) / (signal.std() or 1.0)
        if truth.noise:
            mean = truth.level + signal
            label = mean + truth.noise * random.standard_normal(len(mean))
            label = np.expm1(np.maximum(label, 0.0)) if truth.name == "watch_time" else label
        else:
            mean = _sigmoid(signal + _bias_for(truth.level, signal))
            label = (random.random(len(mean)) < mean).astype(np.int8)
        columns[truth.name] = pa.array(label, mask=random.random(len(mean)) >= truth.known)
        columns[f"true_{truth.name}"] = pa.array(mean)
    return columns


def _mixed_signals(x: Array, random: np.random.Generator) -> Callable[[Truth], Array]:
    """Each task mixes its two experts and reads the mixture out in its own way."""
    experts = [_expert(x, random) for _ in range(EXPERTS)]

    def signal(truth: Truth) -> Array:
        share = random.uniform(0.35, 0.65)
        first, second = truth.experts
        return (share * experts[first] + (1 - share) * experts[second]) @ random.standard_normal(HIDDEN)

    return signal


def _conflicting_signals(x: Array, conflict: float, random: np.random.Generator) -> Callable[[Truth], Array]:
    """One signal for all tasks, and one for each pair of experts; squared weights 1 − conflict and conflict."""
    pairs = list(dict.fromkeys(truth.experts for truth in TRUTHS))
    drawn = [_standardised(_expert(x, random) @ random.standard_normal(HIDDEN)) for _ in [None, *pairs]]
    common, *own = np.linalg.qr(np.stack(drawn, 1))[0].T  # uncorrelated in these very rows
    return lambda truth: np.sqrt(1 - conflict) * common + np.sqrt(conflict) * own[pairs.index(truth.experts)]


def _expert(x: Array, random: np.random.Generator) -> Array:
    """A tanh layer of the latent truth [rows, HIDDEN]."""
    return np.tanh(x @ (random.standard_normal((x.shape[1], HIDDEN)) / np.sqrt(x.shape[1])))


def _standardised(signal: Array) -> Array:
    return (signal - signal.mean()) / (signal.std() or 1.0)


def _sigmoid(logits: Array) -> Array:
    return 1 / (1 + np.exp(-logits))


def _bias_for(rate: float, logits: Array) -> float:
    """The bias with which the mean probability is the base rate, by bisection."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(logits + middle).mean() < rate else (low, middle)
    return low


def _batch_size(rows: int) -> int:
    """The largest power of two with which an epoch has enough steps; from 32, so that batch norm sees enough rows."""
    fitting = rows * (DAYS - 2) // DAYS // EPOCH_STEPS
    return min(512, max(32, 1 << max(0, fitting.bit_length() - 1)))


def _config(rows: int) -> dict[str, Any]:
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
    first = FIRST_DAY.date()
    return {
        "name": "feed",
        "columns": {"time": "time", "user": "user_id", "item": "item_id"},
        "logs": {
            "validation_from": f"{first.replace(day=DAYS - 1)}T00:00:00",
            "test_from": f"{first.replace(day=DAYS)}T00:00:00",
        },
        "model": {"gate": {"kind": "dselect_k"}},
        "training": {"batch_size": _batch_size(rows)},
        "serving": {"objective": OBJECTIVE},
        "features": features,
        "tasks": tasks,
    }
