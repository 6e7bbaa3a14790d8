"""The dense model, read top to bottom: embeddings → batch norm → n experts → one gate a task → towers → outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from ranking.encoding.torch_batch import TorchBatch
from ranking.gates import Routing
from ranking.gates.config import DSelectKConfig, GateConfig, SoftmaxSelectorsConfig, build_gate
from ranking.model.experts import StackedLinear, StackedMLP
from ranking.model.position_tower import PositionTower, PositionTowerConfig
from ranking.schema import StrictModel, Widths
from ranking.selection import Shape

if TYPE_CHECKING:  # handed in, so that nothing here needs TorchRec
    from ranking.model.embeddings import Embeddings


class ModelConfig(StrictModel):
    """Sizes of the multi-gate mixture; the defaults are those measured in docs/results.md.

    Attributes:
        experts: n, any number from 1; a shared bottom has one whatever this says.
        expert_layers: widths of an expert's ReLU layers.
        tower_layers: widths of a task tower's ReLU layers, before its one output.
        dropout: after each of those layers, in training only.
        gate: how tasks choose experts.
        side_tower: what reads the training-only features; None if there are none.
    """

    experts: PositiveInt = 8
    expert_layers: Widths = (128,)
    tower_layers: Widths = (64,)
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    gate: GateConfig = DSelectKConfig()
    side_tower: PositionTowerConfig | None = None

    @model_validator(mode="after")
    def _k_experts_exist(self) -> Self:
        k: int = getattr(self.gate, "k", 1)
        if k > self.experts:
            raise ValueError(f"gate.k = {k} of {self.experts} experts: choose k ≤ experts")
        if self.experts_budget is not None and self.experts_budget > self.experts:
            raise ValueError(
                f"gate.experts_budget = {self.experts_budget} of {self.experts} experts: choose a budget ≤ experts"
            )
        return self

    @property
    def num_experts(self) -> int:
        """n, which is 1 for a shared bottom."""
        return 1 if self.gate.kind == "shared_bottom" else self.experts

    @property
    def experts_budget(self) -> int | None:
        """B with its default filled in; None if the gate takes no budget or has none."""
        gate = self.gate
        if not isinstance(gate, DSelectKConfig | SoftmaxSelectorsConfig):
            return None
        if gate.experts_budget is None and not getattr(gate, "per_example", False):
            return max(gate.k, self.experts // 4)
        return gate.experts_budget


class ForwardOutput(NamedTuple):
    """What one pass through the model gives.

    Attributes:
        outputs: [batch, tasks]: a logit for a binary task, the (transformed) number for a regression.
        x: what experts and gates read [batch, inputs].
        routing: what the gate did.
    """

    outputs: Tensor
    x: Tensor
    routing: Routing


class MMoE(nn.Module):
    """Multi-gate mixture of experts.

    Args:
        config: sizes and the gate.
        num_tasks: outputs.
        embeddings: maps ``TorchBatch`` to [batch, its ``width``].
        dense_size: width of ``TorchBatch.dense``.
        gamma: initial width of a DSelect-k gate's fractional region.
        side: what is added to the outputs in training; its mean takes its place in eval mode.
        correction: what is added to the outputs [tasks] in eval mode, for the negatives that training leaves out.

    Attributes:
        active: numbers of the experts that are still there, ascending.
    """

    active: Tensor
    correction: Tensor

    def __init__(
        self,
        config: ModelConfig,
        num_tasks: int,
        embeddings: Embeddings,
        dense_size: int,
        gamma: float = 1.0,
        side: PositionTower | None = None,
        correction: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        inputs, width, experts = embeddings.width + dense_size, config.expert_layers[-1], config.num_experts
        self.shape = Shape(inputs, config.expert_layers, config.tower_layers)
        self.embeddings = embeddings
        self.norm = nn.BatchNorm1d(inputs)
        self.experts = StackedMLP(experts, inputs, config.expert_layers, config.dropout)
        self.gate = build_gate(config.gate, num_tasks, experts, inputs, width, gamma)
        self.towers = StackedMLP(num_tasks, width, config.tower_layers, config.dropout)
        self.output = StackedLinear(num_tasks, config.tower_layers[-1], 1)
        self.register_buffer("active", torch.arange(experts))
        self.side = side
        self.register_buffer("correction", torch.tensor(correction or [0.0] * num_tasks), persistent=False)

    def forward(self, inputs: TorchBatch, side: TorchBatch | None = None) -> Tensor:
        """Outputs [batch, tasks]: a logit for a binary task, the (transformed) number for a regression."""
        return self.forward_with_routing(inputs, side).outputs

    def forward_with_routing(self, inputs: TorchBatch, side: TorchBatch | None = None) -> ForwardOutput:
        """One pass, with what the gate did in it.

        Args:
            inputs: what the model reads.
            side: what the side tower reads of the same rows; needed in training, not looked at in eval mode.

        Raises:
            ValueError: training a model with a side tower without its inputs.
        """
        x = self.norm(torch.cat([self.embeddings(inputs), inputs.dense], 1))
        hidden = self.experts(x)
        routing = self.gate.route(x, hidden)
        weights = routing.weights[..., self.active]
        mixed = torch.einsum("bte,ebw->tbw" if weights.dim() == 3 else "te,ebw->tbw", weights, hidden)
        return ForwardOutput(self.output(self.towers(mixed)).squeeze(-1).T + self._added(side), x, routing)

    def _added(self, side: TorchBatch | None) -> Tensor | float:
        if not self.training:
            return self.offset
        if self.side is None:
            return 0.0
        if side is None:
            raise ValueError("a model with a side tower trains on the side tower's inputs too")
        added: Tensor = self.side(side)
        return added

    @property
    def offset(self) -> Tensor:
        """What is added to the outputs [tasks] in eval mode and becomes part of the bias when the model is frozen."""
        return self.correction if self.side is None else self.correction + self.side.mean

    @torch.no_grad()
    def start_at(self, outputs: Tensor) -> None:
        """Sets the output biases [tasks], so that training starts at the base rates instead of at ½."""
        self.output.bias.copy_(outputs.unsqueeze(1))

    def keep_experts(self, experts: list[int]) -> None:
        """Drops all experts but these: the conditional phase, once the gates have converged to them.

        The gate's weights for the dropped ones are 0, so the outputs stay the same.
        """
        kept = self.positions(experts)
        self.experts.keep(kept)
        self.active = self.active[kept]

    def positions(self, experts: list[int]) -> list[int]:
        """Where these experts lie among those that are still there."""
        position = {int(expert): i for i, expert in enumerate(self.active)}
        return [position[expert] for expert in experts]
