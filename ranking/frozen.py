"""The sparse inference graph: only the chosen experts exist, and only those of the asked-for tasks run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional as F

from ranking.encoding import Encoder, Inputs
from ranking.errors import InvalidInputError
from ranking.features import FeatureTable, complete, violations
from ranking.losses import scores
from ranking.model import Mixture
from ranking.schema import Owner, Schema, Task
from ranking.selection import Selection

SCORE_ROWS = 4096
"""Rows that are scored at a time; bounds the memory of a large table."""

Layer = tuple[Tensor, Tensor]
"""Weight [inputs, outputs] and bias [outputs]."""


class FrozenGraph:
    """Tensors in, outputs out. The reference: in float64, so that a row's scores do not depend on the rows beside it.

    Weights by name: ``embedding.TABLE`` [rows, dim]; ``expert.E.L.weight`` and ``.bias`` for layer L of expert E (the
    batch norm is folded into layer 0); ``tower.TASK.L.weight`` and ``.bias``, the last layer giving the output.

    Args:
        schema: features and tasks.
        selection: what the gates chose.
        weights: name → tensor, as above.
    """

    def __init__(self, schema: Schema, selection: Selection, weights: Mapping[str, Tensor]) -> None:
        self.schema = schema
        self.selection = selection
        self.weights = weights
        self._experts = {e: _layers(weights, f"expert.{e}") for e in selection.experts_used}
        self._towers = {task: _layers(weights, f"tower.{task}") for task in schema.task_names}

    def __call__(self, inputs: Inputs, tasks: Sequence[str]) -> Tensor:
        """Outputs [batch, tasks] float64: a logit for a binary task, the (transformed) number for a regression."""
        x = torch.cat([*self._embedded(inputs), inputs.dense], 1).double()
        experts = {e: self._expert(e, x) for e in self.selection.experts_for(tasks)}
        return torch.cat([self._task(task, experts) for task in tasks], 1)

    def _embedded(self, inputs: Inputs) -> list[Tensor]:
        weights = self.weights
        columns = [
            weights[f"embedding.{feature.table}"][inputs.ids[:, i]]
            for i, feature in enumerate(self.schema.categoricals)
        ]
        for feature, bag in zip(self.schema.bags, inputs.bags, strict=True):
            starts = torch.cumsum(bag.lengths, 0) - bag.lengths
            table = weights[f"embedding.{feature.table}"]
            columns.append(F.embedding_bag(bag.values, table, starts, mode=feature.pooling))
        return columns

    def _expert(self, expert: int, x: Tensor) -> Tensor:
        for weight, bias in self._experts[expert]:
            x = torch.addmm(bias, x, weight).relu_()
        return x

    def _task(self, task: str, experts: Mapping[int, Tensor]) -> Tensor:
        chosen = self.selection.tasks[task]
        x = torch.stack([experts[e] * weight for e, weight in chosen.items()]).sum(0)
        *hidden, (weight, bias) = self._towers[task]
        for hidden_weight, hidden_bias in hidden:
            x = torch.addmm(hidden_bias, x, hidden_weight).relu_()
        return torch.addmm(bias, x, weight)


def _layers(weights: Mapping[str, Tensor], prefix: str) -> list[Layer]:
    layers: list[Layer] = []
    while f"{prefix}.{len(layers)}.weight" in weights:
        name = f"{prefix}.{len(layers)}"
        layers.append((weights[f"{name}.weight"].double(), weights[f"{name}.bias"].double()))
    return layers


@dataclass(frozen=True)
class FrozenRanker:
    """A ranker that scores: tables in, tables of scores out.

    Attributes:
        schema: features and tasks.
        encoder: columns → tensors.
        graph: tensors → outputs.
        tables: features of users and items by id, for what a table of candidates leaves out.
        objective: task → weight in the score that sorts, unless a request says otherwise.
        details: what else the bundle says of itself (costs, training).
    """

    schema: Schema
    encoder: Encoder
    graph: FrozenGraph
    tables: Mapping[Owner, FeatureTable]
    objective: Mapping[str, float]
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def selection(self) -> Selection:
        """What the gates chose."""
        return self.graph.selection

    def score(self, table: pa.Table, tasks: Sequence[str] | None = None) -> pa.Table:
        """Scores of each row: probabilities of binary tasks, (transformed) numbers of regressions.

        Args:
            table: ids and features, one row a candidate; what is left out is looked up, see ``features.complete``.
            tasks: which; default all. Experts that none of them chose do not run.

        Returns:
            One float32 column a task, in the order asked for.

        Raises:
            InvalidInputError: an unknown task, a column of the wrong type, a NaN or infinite number (names the row).
        """
        chosen = self.tasks(tasks)
        scored, _ = self.score_completed(self.complete(table), chosen)
        return score_table(scored, chosen)

    def complete(self, table: pa.Table) -> pa.Table:
        """The table with every feature of the schema, looked up or null where it lacks one.

        Raises:
            InvalidInputError: a column of the wrong type, a NaN or infinite number (names the row).
        """
        whole = complete(table, self.schema, self.tables)
        for feature, broken, how in violations(whole, self.schema):
            row = broken.index(True).as_py()
            if row >= 0:
                raise InvalidInputError(feature.column, how, row)
        return whole

    @torch.inference_mode()
    def score_completed(self, table: pa.Table, tasks: Sequence[Task]) -> tuple[Tensor, Tensor]:
        """Scores [rows, tasks] float32 of a completed table, and which features were missing [rows, features] bool."""
        names = [task.name for task in tasks]
        scored, missing = [torch.empty(0, len(tasks))], [torch.empty(0, len(self.schema.features), dtype=torch.bool)]
        for start in range(0, table.num_rows, SCORE_ROWS):
            inputs = self.encoder.encode(table.slice(start, SCORE_ROWS))
            scored.append(scores(self.graph(inputs, names), tasks).float())
            missing.append(inputs.missing)
        return torch.cat(scored), torch.cat(missing)

    def tasks(self, names: Sequence[str] | None) -> list[Task]:
        """The named tasks, default all.

        Raises:
            InvalidInputError: a name that the ranker does not know, or a name twice.
        """
        known = {task.name: task for task in self.schema.tasks}
        if names is None:
            return list(known.values())
        if not names:
            raise InvalidInputError("tasks", f"none is asked for: choose from {', '.join(known)}")
        for name in names:
            if name not in known:
                raise InvalidInputError("tasks", f"unknown task '{name}': choose from {', '.join(known)}")
        for i, name in enumerate(names):
            if name in names[:i]:
                raise InvalidInputError("tasks", f"task '{name}' is asked for twice")
        return [known[name] for name in names]


def score_table(scored: Tensor, tasks: Sequence[Task]) -> pa.Table:
    """Scores [rows, tasks] as a table with a column for each task."""
    return pa.table({task.name: pa.array(column.numpy()) for task, column in zip(tasks, scored.T, strict=True)})


@torch.no_grad()
def freeze(
    model: Mixture,
    encoder: Encoder,
    tables: Mapping[Owner, FeatureTable],
    objective: Mapping[str, float],
    details: Mapping[str, Any] | None = None,
) -> FrozenRanker:
    """The sparse graph of a converged model: chosen experts only, batch norm folded into their first layer.

    Raises:
        NotConvergedError: a gate whose codes are not binary; names task, selector and distance.
    """
    schema = encoder.schema
    selection = model.gate.selection(schema.task_names)
    norm = model.norm
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    shift = norm.bias.double() - norm.running_mean.double() * scale
    weights = {f"embedding.{name}": model.embeddings.weight(name) for name in schema.tables}
    used = selection.experts_used
    for expert, position in zip(used, model.positions(used), strict=True):
        for depth, layer in enumerate(model.experts.stack):
            weight, bias = layer.weight[position].double(), layer.bias[position].double()
            if depth == 0:
                weight, bias = scale.unsqueeze(1) * weight, bias + shift @ weight
            weights |= _named(f"expert.{expert}.{depth}", weight, bias)
    for t, task in enumerate(schema.task_names):
        for depth, layer in enumerate([*model.towers.stack, model.output]):
            weights |= _named(f"tower.{task}.{depth}", layer.weight[t], layer.bias[t])
    weights = {name: weight.detach().float().clone().contiguous() for name, weight in weights.items()}
    return FrozenRanker(schema, encoder, FrozenGraph(schema, selection, weights), tables, objective, details or {})


def _named(prefix: str, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    return {f"{prefix}.weight": weight, f"{prefix}.bias": bias}
