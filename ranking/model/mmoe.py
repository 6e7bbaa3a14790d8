"""The dense model: embeddings, batch norm, n experts, one gate per task, towers, outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ranking.encoding.torch_batch import TorchBatch
from ranking.gates import Routing
from ranking.gates.factory import build_gate
from ranking.model.dense_inputs import DenseInputs
from ranking.model.experts import StackedLinear, StackedMLP
from ranking.model.position_tower import PositionTower
from ranking.model.readings import ScaledSum, SideBySide, WeightedSum
from ranking.selection import Selection, Shape
from ranking.settings.model import ModelConfig

if TYPE_CHECKING:  # Passed in, so that this module does not need TorchRec.
    from ranking.model.embeddings import Embeddings


class ForwardOutput(NamedTuple):
    """Result of one forward pass.

    Attributes:
        outputs: logits of binary tasks, (transformed) values of regressions [batch, tasks].
        x: input of experts and gates [batch, inputs].
        routing: gate weights of the pass.
    """

    outputs: Tensor
    x: Tensor
    routing: Routing


class MMoE(nn.Module):
    """Multi-gate mixture of experts.

    Args:
        config: sizes and the gate.
        num_tasks: number of outputs.
        embeddings: module that maps ``TorchBatch`` to [batch, ``embeddings.width``].
        dense: module that maps ``TorchBatch.dense`` to [batch, ``dense.width``].
        gamma: initial width of a DSelect-k gate's fractional region.
        side: position tower, whose output is added in training; in eval mode its mean is added instead.
        correction: offset of the outputs [tasks] in eval mode, which corrects for down-sampled negatives.

    Attributes:
        active: numbers of the remaining experts, ascending.
        reading: module that computes the inputs of the towers from the experts' outputs.
        towers: ReLU layers of the towers; without the first if ``reading`` computes it.
    """

    active: Tensor
    correction: Tensor

    def __init__(
        self,
        config: ModelConfig,
        num_tasks: int,
        embeddings: Embeddings,
        dense: DenseInputs,
        gamma: float = 1.0,
        side: PositionTower | None = None,
        correction: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        inputs, width, experts = embeddings.width + dense.width, config.expert_layers[-1], config.num_experts
        self.shape = Shape(inputs, config.expert_layers, config.tower_layers, config.reading)
        self.embeddings, self.dense = embeddings, dense
        self.norm = nn.BatchNorm1d(inputs)
        self.experts = StackedMLP(experts, inputs, config.expert_layers, config.dropout)
        self.gate = build_gate(config.gate, num_tasks, experts, inputs, width, gamma)
        self.reading: WeightedSum | ScaledSum | SideBySide = WeightedSum()
        tower_widths = [width, *config.tower_layers]
        if config.reading == "scaled":
            self.reading = ScaledSum(num_tasks, experts, width, self.gate.k)
        elif config.reading == "side_by_side":
            width, units, *_ = tower_widths
            self.reading = SideBySide(num_tasks, experts, width, units, self.gate.k, config.dropout)
            tower_widths = tower_widths[1:]
        self.towers = StackedMLP(num_tasks, tower_widths[0], tower_widths[1:], config.dropout)
        self.output = StackedLinear(num_tasks, config.tower_layers[-1], 1)
        self.register_buffer("active", torch.arange(experts))
        self.side = side
        self.register_buffer("correction", torch.tensor(correction or [0.0] * num_tasks), persistent=False)

    def forward(self, inputs: TorchBatch, side: TorchBatch | None = None) -> Tensor:
        """Return logits of binary tasks and (transformed) values of regressions [batch, tasks]."""
        return self.forward_with_routing(inputs, side).outputs

    def forward_with_routing(self, inputs: TorchBatch, side: TorchBatch | None = None) -> ForwardOutput:
        """Run the model and return outputs together with the gate's routing.

        Args:
            inputs: inputs of the model.
            side: inputs of the position tower for the same rows; required in training, ignored in eval mode.

        Raises:
            ValueError: the model has a position tower, is in training mode, and ``side`` is missing.
        """
        x = self.norm(self.features(inputs))
        hidden = self.experts(x)
        routing = self.gate.route(x, hidden)
        mixed = self.reading(hidden, routing.weights[..., self.active])
        return ForwardOutput(self.output(self.towers(mixed)).squeeze(-1).T + self._added_outputs(side), x, routing)

    def features(self, inputs: TorchBatch) -> Tensor:
        """Return embeddings and numbers of rows, before batch norm [batch, inputs]."""
        return torch.cat([self.embeddings(inputs), self.dense(inputs.dense)], 1)

    def _added_outputs(self, side: TorchBatch | None) -> Tensor | float:
        if not self.training:
            return self.offset
        if self.side is None:
            return 0.0
        if side is None:
            raise ValueError("a model with a position tower needs the tower's inputs in training")
        added: Tensor = self.side(side)
        return added

    @property
    def offset(self) -> Tensor:
        """Offset of the outputs [tasks] in eval mode; freezing folds it into the output biases."""
        return self.correction if self.side is None else self.correction + self.side.mean

    def selection(self, tasks: Sequence[str] | None = None) -> Selection:
        """Return the selection of a static gate, see ``Gate.selection``."""
        return replace(self.gate.selection(tasks), reading=self.shape.reading)

    @torch.no_grad()
    def set_output_bias(self, outputs: Tensor) -> None:
        """Set the output biases [tasks], so that training starts at the base rates instead of at ½."""
        self.output.bias.copy_(outputs.unsqueeze(1))

    def freeze_normalization(self) -> None:
        """Normalize with the running statistics, and do not update them, until the next call of ``train``.

        A feature that is constant in new rows, such as the weekday in those of one day, would shrink its running
        variance towards 0, so that every other value gets a huge input.
        """
        self.norm.eval()
        if self.side is not None:
            self.side.norm.eval()

    def keep_experts(self, experts: list[int]) -> None:
        """Remove all other experts once the gates have converged.

        The gate weights of the removed experts are 0, so the outputs do not change.
        """
        kept = self.positions(experts)
        self.experts.keep(kept)
        self.reading.keep(kept)
        self.active = self.active[kept]

    def positions(self, experts: list[int]) -> list[int]:
        """Return the positions of these experts among the remaining ones."""
        position = {int(expert): i for i, expert in enumerate(self.active)}
        return [position[expert] for expert in experts]
