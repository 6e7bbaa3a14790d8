"""Similarity of tasks, measured before training: tasks that are alike start with the same experts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import islice
from typing import NamedTuple, Self

import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor
from torch.nn import functional as F

from pipelines.config.config import Config
from pipelines.console import print_status
from pipelines.runs.run import RunFolder
from pipelines.training.dataloader import BatchLoader
from pipelines.training.distributed import DistContext
from pipelines.training.labeled_batch import DeviceBatch
from ranking.artifacts.atomic_files import write_json
from ranking.gates import DSelectK
from ranking.model.mmoe import MMoE
from ranking.settings.gate import DSelectKConfig

ROWS = 50_000
"""Number of rows that are read, over all ranks, in whole batches."""

UNITS = 256
"""Number of random ReLU units of the model's input that the predictors read."""

ALIKE = 0.6
"""Mean similarity from which tasks belong to the same group."""

RIDGE = 1e-3
"""Ridge penalty of the predictors, relative to the mean variance of a unit."""

SIGNAL = 10.0
"""Minimum variance that a predictor explains, relative to that of chance. With rare labels, sharing is better."""


def start_similar_tasks_alike(
    config: Config, run: RunFolder, model: MMoE, loader: BatchLoader, context: DistContext
) -> None:
    """Let the tasks of a group start with the same k experts, and different groups with different ones.

    There are at most B / k groups, so that the start fits into the experts budget. With a budget below 2k, with one
    task and with other gates than a static DSelect-k, nothing changes. Writes the similarity and the groups.

    Args:
        config: the whole configuration.
        run: the run folder.
        model: the untrained model.
        loader: batches of the training split.
        context: the ranks that train together.
    """
    gate, settings, budget = model.gate, config.model.gate, config.model.experts_budget or 0
    if not isinstance(gate, DSelectK) or not isinstance(settings, DSelectKConfig) or settings.start == "random":
        return
    most = budget // gate.k
    if gate.per_example or min(most, gate.num_tasks, loader.steps()) < 2:
        return
    similarity = similarity_of_split(model, loader, config.training.batch_size, context)
    groups = group_tasks(similarity, most)
    first = torch.tensor(groups)[:, None] * gate.k
    gate.start_from(first + torch.arange(gate.k))
    names = members(config.task_names, groups)
    if context.is_main:
        matrix = [[None if math.isnan(value) else round(value, 4) for value in row] for row in similarity.tolist()]
        write_json({"tasks": config.task_names, "similarity": matrix, "groups": names}, run.task_similarity)
        print_status(f"tasks that start with the same experts: {'; '.join(map(', '.join, names))}")


def similarity_of_split(model: MMoE, loader: BatchLoader, batch_size: int, context: DistContext) -> Tensor:
    """Return the similarity of the tasks of a log, see ``measure_similarity``; NaN if the log is a single batch.

    Args:
        model: the untrained model; left in eval mode.
        loader: batches of the training split.
        batch_size: size of a batch over all ranks.
        context: the ranks that read the log together.
    """
    if loader.steps() < 2:
        return torch.full((model.gate.num_tasks, model.gate.num_tasks), math.nan, dtype=torch.float64)
    model.eval()
    with closing(loader.epoch(0)) as epoch:
        batches = (
            DeviceBatch.from_labeled(batch, context.device) for batch in islice(epoch, max(2, -(-ROWS // batch_size)))
        )
        return measure_similarity(((model.features(b.inputs), b.labels, b.weights) for b in batches), context)


@torch.no_grad()
def measure_similarity(batches: Iterable[tuple[Tensor, Tensor, Tensor]], context: DistContext) -> Tensor:
    """Return how alike the functions are that the tasks need [tasks, tasks]: 0 for unrelated tasks, 1 for equal ones.

    Ridge regressions predict the tasks' standardized labels from random units, as untrained experts compute them; this
    is the first natural-gradient step of linear towers. The similarity is the absolute correlation of two tasks'
    predictors. Both are fitted on different halves of the rows, so that noise which the labels share does not count.
    A task whose predictor explains hardly more than chance has NaN.

    Args:
        batches: batches of this rank, at least two: inputs of the experts [rows, inputs] before batch norm, labels
            [rows, tasks], which are NaN if masked, and sample weights [rows].
        context: the ranks that train together.
    """
    generator = torch.Generator().manual_seed(0)  # the same units on every rank
    halves: list[_Sums] = []
    for position, (features, labels, sample_weights) in enumerate(batches):
        if position == 0:
            inputs = features.shape[1]
            weights = (2 * torch.rand(UNITS, inputs + 1, generator=generator) - 1).to(features) / math.sqrt(inputs)
        x = F.batch_norm(features, None, None, training=True)
        units = F.relu(F.linear(x, weights[:, 1:], weights[:, 0]))
        sums = _Sums.of(units, labels, sample_weights)
        if position < 2:
            halves.append(sums)
        else:
            halves[position % 2] += sums
    a, b = (half.over_ranks(context) for half in halves)
    total = a + b
    means = total.units / total.rows
    base = total.labels / _positive(total.known)
    deviation = (total.squared_labels / _positive(total.known) - base.square()).clamp(min=1e-12).sqrt()
    covariance = total.products / total.rows - means[:, None] * means
    ridge = RIDGE * covariance.diagonal().mean().clamp(min=1e-12) * torch.eye(len(covariance), dtype=torch.float64)

    def cross_covariance(half: _Sums) -> Tensor:
        """Return the covariance of units and standardized labels [units, tasks]."""
        residual = half.units_labels - half.units_known * base - means[:, None] * (half.labels - half.known * base)
        return residual / (_positive(half.known) * deviation)

    explained = cross_covariance(a).T @ torch.linalg.solve(covariance + ridge, cross_covariance(b))
    explained = (explained + explained.T) / 2
    variance = explained.diagonal()
    chance = (len(covariance) / (a.effective_rows * b.effective_rows).clamp(min=1)).sqrt()
    deviation = torch.where(variance > SIGNAL * chance, variance, math.nan).sqrt()
    similarity: Tensor = explained.abs() / (deviation[:, None] * deviation)
    return similarity.clamp(max=1)


class _Sums(NamedTuple):
    """Sums over rows of units φ, labels y and sample weights w, where w = 0 for a masked label.

    Attributes:
        products: Σ φφᵀ [units, units].
        units: Σ φ [units].
        rows: number of rows.
        units_labels: Σ φwy [units, tasks].
        units_known: Σ φw [units, tasks].
        labels: Σ wy [tasks].
        known: Σ w [tasks].
        squared_weights: Σ w² [tasks].
        squared_labels: Σ wy² [tasks].
    """

    products: Tensor
    units: Tensor
    rows: Tensor
    units_labels: Tensor
    units_known: Tensor
    labels: Tensor
    known: Tensor
    squared_weights: Tensor
    squared_labels: Tensor

    @classmethod
    def of(cls, units: Tensor, labels: Tensor, weights: Tensor) -> Self:
        """Return the sums of a batch, in float64."""
        known = labels.isfinite() * weights[:, None]
        labels = torch.where(known > 0, labels, 0.0)
        rows = units.new_tensor(float(len(units)))
        products = units.T @ units, units.sum(0), rows, units.T @ (known * labels), units.T @ known
        sums = (known * labels).sum(0), known.sum(0), known.square().sum(0), (known * labels.square()).sum(0)
        return cls(*(value.double() for value in (*products, *sums)))

    def __add__(self, other: Self) -> Self:  # type: ignore[override]
        return type(self)(*(a + b for a, b in zip(self, other, strict=True)))

    def over_ranks(self, context: DistContext) -> Self:
        """Return the sums over all ranks, on the CPU."""
        return type(self)(*(context.sum(value).cpu() for value in self))

    @property
    def effective_rows(self) -> Tensor:
        """Number of rows with the same information [tasks]: that of the labeled rows if all weights are equal."""
        return self.known.square() / _positive(self.squared_weights)


def _positive(values: Tensor) -> Tensor:
    """Return the values with 1 instead of 0, as divisors of sums that are then 0, too."""
    return torch.where(values > 0, values, 1.0)


def group_tasks(similarity: Tensor, most: int) -> list[int]:
    """Return the group of each task, numbered by its first task.

    Groups are merged as long as the mean similarity between two of them is at least ``ALIKE``, or there are too many.
    Tasks of unknown similarity join the largest group: with little to learn from, a task does better on shared experts.

    Args:
        similarity: of each pair of tasks, from 0 to 1 [tasks, tasks]; NaN if unknown.
        most: maximum number of groups.
    """
    known = (~similarity.diagonal().isnan()).nonzero().flatten()
    if len(known) < 2:
        return [0] * len(similarity)
    merges = linkage(squareform(1 - similarity[known][:, known].numpy(), checks=False), "average")
    alike = fcluster(merges, 1 - ALIKE, "distance").tolist()
    labels = alike if len(set(alike)) <= most else fcluster(merges, most, "maxclust").tolist()
    (largest, _), *_ = Counter(labels).most_common(1)
    label_of_task = dict(zip(known.tolist(), labels, strict=True))
    groups = [label_of_task.get(task, largest) for task in range(len(similarity))]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return [numbers[group] for group in groups]


def members(names: Sequence[str], groups: Sequence[int]) -> list[list[str]]:
    """Return the names of the tasks of each group."""
    return [[name for name, g in zip(names, groups, strict=True) if g == group] for group in sorted(set(groups))]
