"""The dense model, read top to bottom: embeddings → batch norm → n experts → one gate a task → towers → outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from ranking.encoding import Inputs
from ranking.experts import StackedLinear, StackedMLP
from ranking.gates import DSelectK
from ranking.schema import Record
from ranking.selection import Shape

if TYPE_CHECKING:  # handed in, so that nothing here needs TorchRec
    from ranking.embeddings import Embeddings

Widths = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class GateConfig(Record):
    """A static DSelect-k gate: each task uses at most k experts."""

    k: PositiveInt = 2


class ModelConfig(Record):
    """Sizes of the multi-gate mixture; the defaults are those measured in docs/results.md.

    Attributes:
        experts: n, any number from 1.
        expert_layers: widths of an expert's ReLU layers.
        tower_layers: widths of a task tower's ReLU layers, before its one output.
        dropout: after each of those layers, in training only.
    """

    experts: PositiveInt = 8
    expert_layers: Widths = (128,)
    tower_layers: Widths = (64,)
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    gate: GateConfig = GateConfig()

    @model_validator(mode="after")
    def _k_experts_exist(self) -> Self:
        if self.gate.k > self.experts:
            raise ValueError(f"gate.k = {self.gate.k} of {self.experts} experts: choose k ≤ experts")
        return self


class Mixture(nn.Module):
    """Multi-gate mixture of experts with static DSelect-k gates.

    Args:
        config: sizes.
        num_tasks: outputs.
        embeddings: maps ``Inputs`` to [batch, its ``width``].
        dense_size: width of ``Inputs.dense``.
        gamma: initial width of the gates' fractional region.
    """

    active: Tensor

    def __init__(
        self, config: ModelConfig, num_tasks: int, embeddings: Embeddings, dense_size: int, gamma: float = 1.0
    ) -> None:
        super().__init__()
        inputs = embeddings.width + dense_size
        self.shape = Shape(inputs, config.expert_layers, config.tower_layers)
        self.embeddings = embeddings
        self.norm = nn.BatchNorm1d(inputs)
        self.experts = StackedMLP(config.experts, inputs, config.expert_layers, config.dropout)
        self.gate = DSelectK(num_tasks, config.experts, config.gate.k, gamma)
        self.towers = StackedMLP(num_tasks, config.expert_layers[-1], config.tower_layers, config.dropout)
        self.output = StackedLinear(num_tasks, config.tower_layers[-1], 1)
        self.register_buffer("active", torch.arange(config.experts))

    def forward(self, inputs: Inputs) -> Tensor:
        """Outputs [batch, tasks]: a logit for a binary task, the (transformed) number for a regression."""
        x = self.norm(torch.cat([self.embeddings(inputs), inputs.dense], 1))
        weights = self.gate()[:, self.active]
        mixed = torch.einsum("te,ebw->tbw", weights, self.experts(x))
        output: Tensor = self.output(self.towers(mixed))
        return output.squeeze(-1).T

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
