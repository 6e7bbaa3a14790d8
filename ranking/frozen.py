"""A ranker that scores: tables in, tables of scores out; and how a trained model becomes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from ranking.calibration import Calibration
from ranking.encoded_table import EncodedTable
from ranking.encoding import Encoder
from ranking.errors import InvalidInputError
from ranking.features import FeatureTable, complete, violations
from ranking.gates.config import GateConfig
from ranking.graph import GATE, FrozenGraph
from ranking.losses import scores
from ranking.model import Mixture
from ranking.schema import Owner, Schema, Task
from ranking.selection import Selection

SCORE_ROWS = 4096
"""Rows that are scored at a time; bounds the memory of a large table."""


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
        body: the graph behind the embeddings as ONNX, see ``onnx_body``; None if there is none.
        stored: ``encoded`` as a bundle holds it; None if the ranker is not from a bundle.
    """

    schema: Schema
    encoder: Encoder
    graph: FrozenGraph
    tables: Mapping[Owner, FeatureTable]
    objective: Mapping[str, float]
    details: Mapping[str, Any] = field(default_factory=dict)
    body: bytes | None = field(default=None, repr=False)
    stored: Mapping[Owner, EncodedTable] | None = field(default=None, repr=False)

    @cached_property
    def encoded(self) -> Mapping[Owner, EncodedTable]:
        """The tables as a service looks them up: already encoded, of each owner that has features.

        Raises:
            InvalidInputError: a table holds a column of the wrong type, a NaN or infinite number (names the row).
        """
        if self.stored is not None:
            return self.stored
        owners = self.schema.owners
        return {
            owner: EncodedTable.temporary(table, self.encoder, owner)
            for owner, table in self.tables.items()
            if owner in owners
        }

    @property
    def backends(self) -> list[str]:
        """What can execute it: ``torch`` whatever it is, the others what they can hold."""
        onnx = [] if self.body is None else ["onnxruntime"]
        return [*onnx, *([] if self.graph.gate is not None else ["cuda"]), "torch"]

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
        """Scores [rows, tasks] float32 of a completed table, and which ``schema.given`` it lacked [rows, features]."""
        names = [task.name for task in tasks]
        scored, missing = [torch.empty(0, len(tasks))], [torch.empty(0, len(self.schema.given), dtype=torch.bool)]
        for start in range(0, table.num_rows, SCORE_ROWS):
            inputs = self.encoder.encode(table.slice(start, SCORE_ROWS))
            scored.append(self.finished(self.graph.uncalibrated(inputs, names), names))
            missing.append(inputs.missing)
        return torch.cat(scored), torch.cat(missing)

    def finished(self, outputs: Tensor, tasks: Sequence[str]) -> Tensor:
        """Scores [rows, tasks] float32 of what the towers of these tasks give [rows, tasks], here or in a runtime."""
        return scores(self.graph.calibration(outputs, tasks), self.tasks(tasks)).float()

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
    routed: tuple[GateConfig, Selection] | None = None,
    calibration: Calibration | None = None,
) -> FrozenRanker:
    """The sparse graph of a converged model: chosen experts only, batch norm folded into their first layer.

    What the model adds to its outputs in eval mode is folded into their biases; the side tower is left out.

    Args:
        model: trained, in any mode.
        encoder: that it was trained with.
        tables: features of users and items by id.
        objective: task → weight in the score that sorts.
        details: what else the bundle is to say of itself.
        routed: settings and mean selection of a per-example gate, which becomes part of the graph.
        calibration: of the outputs, which becomes part of the graph too.

    Raises:
        NotConvergedError: a gate whose choice is not final or that no graph can hold; says why.
        ValueError: a per-example gate without ``routed``.
    """
    schema = encoder.schema
    gate, selection = routed or (None, model.gate.selection(schema.task_names))
    model.gate.require_converged(schema.task_names)
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
        last = len(model.towers.stack)
        for depth, layer in enumerate([*model.towers.stack, model.output]):
            bias = layer.bias[t].double() + (model.offset[t].double() if depth == last else 0.0)
            weights |= _named(f"tower.{task}.{depth}", layer.weight[t], bias)
    weights = {name: weight.float() for name, weight in weights.items()}
    if gate is not None:  # in full precision: a rounded choice can fall on the other side
        weights |= {"norm.scale": scale, "norm.shift": shift}
        weights |= {f"{GATE}{name}": value for name, value in model.gate.state_dict().items()}
    weights = {name: weight.detach().clone().contiguous() for name, weight in weights.items()}
    graph = FrozenGraph(schema, selection, weights, gate, calibration)
    return FrozenRanker(schema, encoder, graph, tables, objective, details or {})


def _named(prefix: str, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    return {f"{prefix}.weight": weight, f"{prefix}.bias": bias}
