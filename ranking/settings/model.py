"""``[model]`` of ``ranker.toml``: sizes of the model, and the settings of its gate and of its position tower."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, PositiveInt, model_validator

from ranking.schema import ListOf, Name, StrictModel, Widths
from ranking.selection import Reading
from ranking.settings.gate import DSelectKConfig, GateConfig, SoftmaxSelectorsConfig


class PositionTowerConfig(StrictModel):
    """``[model.side_tower]`` of ``ranker.toml``.

    Attributes:
        features: names of its input features: the training-only features and related ones, such as the device.
        layers: widths of its ReLU layers.
        dropout: probability that training hides a feature of a row, drawn independently per feature, so that the tower
            does not explain everything by it.
    """

    features: Annotated[ListOf[Name], Field(min_length=1)]
    layers: Widths = (16,)
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1


class ModelConfig(StrictModel):
    """``[model]`` of ``ranker.toml``; the defaults are those measured in docs/results.md.

    Attributes:
        experts: number of experts n ≥ 1; a shared bottom always has one.
        expert_layers: widths of an expert's ReLU layers.
        tower_layers: widths of a task tower's ReLU layers, before its single output.
        reading: input of a tower, computed from the experts that its task selected.
        dropout: dropout probability after each of these layers, in training only.
        gate: kind and settings of the gate.
        side_tower: settings of the position tower, which reads the training-only features; None without one.
    """

    experts: PositiveInt = 8
    expert_layers: Widths = (128,)
    tower_layers: Widths = (64,)
    reading: Reading = "sum"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    gate: GateConfig = DSelectKConfig()
    side_tower: PositionTowerConfig | None = None

    @model_validator(mode="after")
    def _check_expert_counts(self) -> Self:
        k: int = getattr(self.gate, "k", 1)
        if k > self.experts:
            raise ValueError(f"gate.k = {k} exceeds the {self.experts} experts: choose k ≤ experts")
        if self.experts_budget is not None and self.experts_budget > self.experts:
            raise ValueError(
                f"gate.experts_budget = {self.experts_budget} exceeds the {self.experts} experts: "
                "choose a budget ≤ experts"
            )
        if self.reading != "sum" and (self.gate.kind == "attentive" or getattr(self.gate, "per_example", False)):
            raise ValueError(f'reading = "{self.reading}" needs a gate that selects per task, not per example')
        return self

    @property
    def num_experts(self) -> int:
        """Number of experts n; 1 for a shared bottom."""
        return 1 if self.gate.kind == "shared_bottom" else self.experts

    @property
    def experts_budget(self) -> int | None:
        """Experts budget B including its default; None if the gate has no budget."""
        gate = self.gate
        if not isinstance(gate, DSelectKConfig | SoftmaxSelectorsConfig):
            return None
        if gate.experts_budget is None and not getattr(gate, "per_example", False):
            return max(gate.k, self.experts // 4)
        return gate.experts_budget
