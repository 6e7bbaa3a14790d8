"""The frozen graph: it contains only the selected experts and runs only those that the requested tasks need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ranking.encoding.encoder import Encoder
from ranking.encoding.torch_batch import TorchBatch
from ranking.frozen.embedding_rows import decoded
from ranking.frozen.weights import FrozenModel, factors_of, layers_of
from ranking.gates import Gate
from ranking.gates.factory import build_gate
from ranking.model.dense_inputs import DenseInputs
from ranking.selection import Selection
from ranking.settings.gate import GateConfig

Layer = tuple[Tensor, Tensor]
"""Weight [inputs, outputs] and bias [outputs]."""

GATE = "gate."
"""Name prefix of the weights of a per-example gate."""


class MeanGraph:
    """Mean of the outputs of graphs, each with experts and embeddings of its own; usually there is one.

    Args:
        graphs: graphs of the same tasks and encoder.
    """

    def __init__(self, graphs: Sequence[FrozenGraph]) -> None:
        self.graphs = graphs

    def __call__(self, inputs: TorchBatch, tasks: Sequence[str]) -> Tensor:
        """Return uncalibrated outputs [batch, tasks] float64, see ``FrozenGraph``."""
        return torch.stack([graph(inputs, tasks) for graph in self.graphs]).mean(0)

    def routing(self, inputs: TorchBatch) -> Tensor:
        """Return the gate weights of ``Selection.joined``, float64, see ``FrozenGraph``."""
        parts = [graph.routing(inputs) / len(self.graphs) for graph in self.graphs]
        if any(part.dim() == 3 for part in parts):
            parts = [part.expand(len(inputs.ids), -1, -1) for part in parts]
        return torch.cat(parts, -1)


class FrozenGraph:
    """Reference implementation of the frozen model in PyTorch.

    It computes in float64, so that the scores of a row do not depend on the other rows of the batch.

    The weights of a static gate are constants of the selection: the experts selected by the requested tasks run on all
    rows. A per-example gate runs first; each expert then runs only on the rows that selected it for a requested task.

    Weight names: ``embedding.TABLE`` [rows, dim]; ``expert.E.L.weight`` and ``.bias`` for layer L of expert E (layer 0
    includes the batch norm); ``tower.TASK.L.weight`` and ``.bias``, where the last layer computes the output. A scaled
    sum adds ``factors.TASK.E`` [width]. Side by side, the first layer of a tower reads the outputs of its task's
    experts, ascending. A per-example gate adds ``gate.NAME``, and ``norm.scale`` and ``norm.shift``, the batch norm of
    the gate's input.

    Args:
        encoder: encoder of the inputs.
        model: selection, weights as above, and gate. The graph shares the memory of weights in float32 or more.

    Attributes:
        weights: the same weights as tensors, with embeddings in float32.
        experts: layers of each selected expert, float64, by expert number.
        factors: factors of the outputs of each task's experts, see ``factors_of``, float64.
        towers: layers of each task's tower, float64; the last one computes the output.
    """

    def __init__(self, encoder: Encoder, model: FrozenModel) -> None:
        self.schema = schema = encoder.schema
        self.selection = selection = model.selection
        self.weights = {name: torch.from_numpy(weight) for name, weight in decoded(model.weights).items()}
        self.gate = gate = model.gate
        self.experts = {e: _layers(self.weights, f"expert.{e}") for e in selection.experts_used}
        self._dense = DenseInputs(encoder.dense_size, encoder.bins).double()
        self.factors = {task: _factors(self.weights, selection, task) for task in schema.task_names}
        self.towers = {task: _layers(self.weights, f"tower.{task}") for task in schema.task_names}
        self._gate = None if gate is None else self._rebuild_gate(gate)

    def __call__(self, inputs: TorchBatch, tasks: Sequence[str]) -> Tensor:
        """Return uncalibrated outputs [batch, tasks] float64: logits (binary) and (transformed) values (regression)."""
        x = self._embed(inputs)
        if self._gate is None:
            experts = {e: self._expert(e, x) for e in self.selection.experts_for(tasks)}
            mixed = [self._mix(experts, self.factors[task]) for task in tasks]
        else:
            mixed = self._route(x, tasks)
        return torch.cat([self._tower(task, hidden) for task, hidden in zip(tasks, mixed, strict=True)], 1)

    def routing(self, inputs: TorchBatch) -> Tensor:
        """Return the gate weights, float64: [tasks, experts], or [batch, tasks, experts] for a per-example gate."""
        if self._gate is not None:
            return self._gate_weights(self._embed(inputs))
        weights = torch.zeros(len(self.schema.tasks), self.selection.num_experts, dtype=torch.float64)
        for row, task in zip(weights, self.schema.task_names, strict=True):
            for expert, weight in self.selection.tasks[task].items():
                row[expert] = weight
        return weights

    def _embed(self, inputs: TorchBatch) -> Tensor:
        """Concatenate embeddings and dense values [batch, inputs] float64."""
        weights = self.weights
        columns = [
            weights[f"embedding.{feature.table}"][inputs.ids[:, i]]
            for i, feature in enumerate(self.schema.categoricals)
        ]
        for feature, bag in zip(self.schema.bags, inputs.bags, strict=True):
            starts = torch.cumsum(bag.lengths, 0) - bag.lengths
            sums = F.embedding_bag(bag.values, weights[f"embedding.{feature.table}"], starts, mode="sum")
            columns.append(sums / feature.divisors(bag.lengths).unsqueeze(1))
        dense = self._dense(inputs.dense.double())
        return torch.cat([*(column.double() for column in columns), dense], 1)

    def _expert(self, expert: int, x: Tensor) -> Tensor:
        for weight, bias in self.experts[expert]:
            x = torch.addmm(bias, x, weight).relu_()
        return x

    def _mix(self, experts: Mapping[int, Tensor], factors: Mapping[int, Tensor]) -> Tensor:
        if self.selection.reading == "side_by_side":
            return torch.cat([experts[e] * factor for e, factor in factors.items()], 1)
        (first, factor), *others = factors.items()
        mixed = experts[first] * factor
        for expert, factor in others:
            mixed.addcmul_(experts[expert], factor)
        return mixed

    def _gate_weights(self, x: Tensor) -> Tensor:
        assert self._gate is not None
        routing: Tensor = self._gate(x * self.weights["norm.scale"] + self.weights["norm.shift"])
        return routing

    def _route(self, x: Tensor, tasks: Sequence[str]) -> list[Tensor]:
        """Mix, for each task, the experts that its rows selected; returns one [batch, width] tensor per task."""
        rank = {name: t for t, name in enumerate(self.schema.task_names)}
        weights = self._gate_weights(x)[:, [rank[task] for task in tasks]]
        width = next(iter(self.experts.values()))[-1][0].shape[1]
        mixed = x.new_zeros(len(tasks), len(x), width)
        for expert in self.experts:
            shares = weights[:, :, expert]
            rows = (shares > 0).any(1).nonzero().flatten()
            if len(rows):
                share = shares[rows].T.unsqueeze(-1)
                # The expert must not reach a task that did not select it, not even as 0 × infinity.
                mixed[:, rows] += torch.where(share > 0, share * self._expert(expert, x[rows]), 0.0)
        return list(mixed)

    def _tower(self, task: str, x: Tensor) -> Tensor:
        *hidden, (weight, bias) = self.towers[task]
        for hidden_weight, hidden_bias in hidden:
            x = torch.addmm(hidden_bias, x, hidden_weight).relu_()
        return torch.addmm(bias, x, weight)

    def _rebuild_gate(self, config: GateConfig) -> Gate:
        inputs, width = len(self.weights["norm.scale"]), next(iter(self.experts.values()))[-1][0].shape[1]
        with torch.random.fork_rng(devices=[]):  # Building the graph must not advance the random state.
            gate = build_gate(config, len(self.schema.tasks), self.selection.num_experts, inputs, width).serving_gate()
        gate.load_state_dict({name[len(GATE) :]: w for name, w in self.weights.items() if name.startswith(GATE)})
        return gate.double().eval().requires_grad_(False)


def _factors(weights: Mapping[str, Tensor], selection: Selection, task: str) -> dict[int, Tensor]:
    factors = factors_of(weights, selection, task).items()
    return {e: torch.as_tensor(factor, dtype=torch.float64) for e, factor in factors}


def _layers(weights: Mapping[str, Tensor], name: str) -> list[Layer]:
    return [(weight.double(), bias.double()) for weight, bias in layers_of(weights, name)]
