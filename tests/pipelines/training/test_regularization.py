"""Schedules and weights of the penalties."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pipelines.config.config import ConvergenceConfig
from pipelines.training.gate_schedule import GateSchedule
from pipelines.training.regularization import Regularization
from ranking.gates import DSelectK, Gate, GumbelSoftmax, regularizers
from ranking.gates.factory import build_gate
from ranking.model.mmoe import ForwardOutput
from ranking.settings.gate import (
    AttentiveConfig,
    DSelectKConfig,
    GateConfig,
    GumbelSoftmaxConfig,
    SharedBottomConfig,
    SoftmaxConfig,
    SoftmaxSelectorsConfig,
    TopKConfig,
)

STEPS = 200
CONFIG = ConvergenceConfig(gamma=2.0, anneal_from=0.25, anneal_until=0.6, overlap_until=0.5)
"""Annealing takes steps 50 to 120, then the selection is final; the overlap weight reaches 0 at step 100."""

TASKS, EXPERTS, INPUTS = 3, 6, 5

ALL_PENALTIES: dict[str, Any] = {
    "importance_weight": 0.1,
    "union_weight": 0.2,
    "overlap_weight": 0.4,
    "entropy_weight": 0.5,
    "surplus": "penalty",
    "surplus_weight": 0.6,
    "per_example": True,
    "similarity_same": 0.7,
    "similarity_different": 0.8,
}

KINDS: list[GateConfig] = [
    DSelectKConfig(),
    DSelectKConfig(per_example=True),
    SoftmaxSelectorsConfig(kind="softmax_selectors"),
    TopKConfig(kind="top_k"),
    SoftmaxConfig(kind="softmax", per_example=True),
    GumbelSoftmaxConfig(kind="gumbel_softmax"),
    AttentiveConfig(kind="attentive"),
    SharedBottomConfig(kind="shared_bottom"),
]


class ScheduledGate:
    """A gate with its schedule, and the penalties of its settings."""

    def __init__(self, settings: GateConfig) -> None:
        self.gate: Gate = build_gate(settings, TASKS, EXPERTS, INPUTS, 8, CONFIG.gamma)
        self.schedule = GateSchedule(CONFIG, self.gate, STEPS)
        self.penalty = Regularization(settings, CONFIG, self.schedule, STEPS)

    def advance_to(self, step: int) -> ScheduledGate:
        """Run the schedule up to and including this step."""
        for number in range(1, step + 1):
            self.schedule.begin_step(number)
            self.schedule.end_step(number, torch.ones(TASKS, EXPERTS))
        return self

    def forward(self) -> ForwardOutput:
        x = torch.randn(16, INPUTS)
        outputs = torch.randn(EXPERTS, 16, 8)
        return ForwardOutput(torch.zeros(16, TASKS), x, self.gate.route(x, outputs))

    def penalty_at(self, step: int, output: ForwardOutput) -> Tensor:
        return torch.as_tensor(self.penalty(step, self.gate, output)).detach()

    def weights_by_step(self, name: str) -> list[float]:
        """Return the weight of a penalty at each step of a training."""
        weights = []
        for step in range(1, STEPS + 1):
            self.schedule.begin_step(step)
            weights.append(self.penalty.weights(step).get(name, 0.0))
            self.schedule.end_step(step, torch.ones(TASKS, EXPERTS))
        return weights


def test_entropy_weight_grows_during_annealing_and_ends_with_the_selection() -> None:
    weights_by_step = ScheduledGate(DSelectKConfig(entropy_weight=0.5)).weights_by_step("entropy")
    assert weights_by_step[:50] == [0.0] * 50
    assert weights_by_step[50:120] == pytest.approx([0.5 * i / 70 for i in range(1, 71)])
    assert weights_by_step[119] == pytest.approx(0.5)
    assert weights_by_step[120:] == [0.0] * 80


def test_overlap_weight_decays_linearly_to_zero() -> None:
    weights_by_step = ScheduledGate(DSelectKConfig(overlap_weight=0.4)).weights_by_step("overlap")
    assert weights_by_step == pytest.approx([max(0.0, 0.4 * (1 - step / 100)) for step in range(1, STEPS + 1)])
    assert weights_by_step[99:] == [0.0] * 101


def test_overlap_weight_with_late_decay_ends_with_the_selection() -> None:
    training = ScheduledGate(DSelectKConfig(overlap_weight=0.4))
    late = CONFIG.model_copy(update={"overlap_until": 1.0})
    penalty = Regularization(DSelectKConfig(overlap_weight=0.4), late, training.schedule, STEPS)
    assert penalty.weights(120)["overlap"] == pytest.approx(0.16)
    training.advance_to(120)
    assert penalty.weights(121) == {}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("union", DSelectKConfig(union_weight=0.2)),
        ("union", SoftmaxSelectorsConfig(kind="softmax_selectors", union_weight=0.2)),
        ("surplus", DSelectKConfig(surplus="penalty", surplus_weight=0.2)),
        ("sparsity", GumbelSoftmaxConfig(kind="gumbel_softmax", sparsity_weight=0.2)),
    ],
)
def test_union_surplus_and_sparsity_weights_are_constant_until_the_selection(name: str, settings: GateConfig) -> None:
    assert ScheduledGate(settings).weights_by_step(name) == [0.2] * 120 + [0.0] * 80


@pytest.mark.parametrize(
    "settings",
    [
        DSelectKConfig(importance_weight=0.1),
        TopKConfig(kind="top_k", importance_weight=0.1),
        GumbelSoftmaxConfig(kind="gumbel_softmax", importance_weight=0.1),
        AttentiveConfig(kind="attentive", importance_weight=0.1),
    ],
)
def test_importance_weight_is_constant_for_the_whole_training(settings: GateConfig) -> None:
    assert ScheduledGate(settings).weights_by_step("importance") == [0.1] * STEPS


@pytest.mark.parametrize("key", ["similarity_same", "similarity_different"])
@pytest.mark.parametrize("kind", [DSelectKConfig, TopKConfig, SoftmaxConfig, AttentiveConfig])
def test_similarity_weight_is_constant_for_the_whole_training(kind: type[Any], key: str) -> None:
    document = {"kind": kind.model_fields["kind"].annotation.__args__[0], key: 0.3}
    if kind is not AttentiveConfig:
        document["per_example"] = True
    assert ScheduledGate(kind(**document)).weights_by_step("similarity") == [1.0] * STEPS


def test_surplus_weight_is_zero_unless_surplus_is_penalty() -> None:
    for surplus in ("fold", "random"):
        training = ScheduledGate(DSelectKConfig(surplus=surplus, surplus_weight=0.6))
        assert training.weights_by_step("surplus") == [0.0] * STEPS


def test_penalty_is_the_weighted_sum_of_all_penalties() -> None:
    training = ScheduledGate(DSelectKConfig(**ALL_PENALTIES)).advance_to(69)
    training.schedule.begin_step(70)
    output = training.forward()
    weights, selectors = output.routing
    assert selectors is not None
    expected = 0.1 * regularizers.importance(weights)
    expected += regularizers.sample_similarity(weights, output.x, 0.7, 0.8)
    expected += 0.2 * regularizers.expected_union(selectors, torch.full((EXPERTS,), 1 / EXPERTS))
    expected += 0.4 * (1 - 70 / 100) * regularizers.overlap(selectors)
    expected += 0.5 * (70 - 50) / 70 * regularizers.entropy(selectors)
    expected += 0.6 * regularizers.surplus(selectors)
    torch.testing.assert_close(training.penalty_at(70, output), expected.detach())


def test_penalty_after_the_selection_has_only_importance_and_similarity() -> None:
    training = ScheduledGate(DSelectKConfig(**ALL_PENALTIES)).advance_to(120)
    output = training.forward()
    expected = 0.1 * regularizers.importance(output.routing.weights)
    expected += regularizers.sample_similarity(output.routing.weights, output.x, 0.7, 0.8)
    torch.testing.assert_close(training.penalty_at(121, output), expected.detach())


def test_penalty_of_a_gumbel_gate_is_weighted_log_psi() -> None:
    training = ScheduledGate(GumbelSoftmaxConfig(kind="gumbel_softmax", sparsity_weight=0.2))
    gate = training.gate
    assert isinstance(gate, GumbelSoftmax)
    torch.testing.assert_close(training.penalty_at(1, training.forward()), 0.2 * gate.log_psi().detach())


@pytest.mark.parametrize("settings", KINDS, ids=lambda s: f"{s.kind}{' per example' * getattr(s, 'per_example', 0)}")
def test_penalty_without_weights_is_zero(settings: GateConfig) -> None:
    free = settings.model_copy(update={name: 0.0 for name in type(settings).model_fields if name.endswith("_weight")})
    training = ScheduledGate(free)
    for step in (1, 49, 50, 70, 119):
        assert training.penalty.weights(step) == {}
        assert training.penalty_at(step, training.forward()) == 0.0


@pytest.mark.parametrize("settings", KINDS, ids=lambda s: f"{s.kind}{' per example' * getattr(s, 'per_example', 0)}")
def test_default_weights_are_only_those_of_the_kinds_settings(settings: GateConfig) -> None:
    """By default: overlap for gates of selectors, sparsity for Gumbel's."""
    named = {f"{name}_weight" for name in ScheduledGate(settings).penalty.weights(1)}
    assert named <= set(type(settings).model_fields)
    expected = {"dselect_k": {"overlap_weight"}, "softmax_selectors": {"overlap_weight"}}
    assert named == {**expected, "gumbel_softmax": {"sparsity_weight"}}.get(settings.kind, set())


def test_overlap_penalty_separates_agreeing_selectors() -> None:
    training = ScheduledGate(DSelectKConfig(overlap_weight=1.0))
    gate = training.gate
    assert isinstance(gate, DSelectK)
    with torch.no_grad():
        gate.z.copy_(torch.tensor([[0.2, 0.1, 0.1], [0.15, 0.12, 0.1]]).expand(TASKS, 2, 3))
    before = regularizers.overlap(gate.selectors()).detach()
    torch.as_tensor(training.penalty(1, gate, training.forward())).backward()
    with torch.no_grad():
        assert gate.z.grad is not None
        gate.z -= 0.1 * gate.z.grad
    assert regularizers.overlap(gate.selectors()) < before


def test_overlap_penalty_of_a_single_selector_is_zero() -> None:
    training = ScheduledGate(DSelectKConfig(k=1, overlap_weight=1.0))
    assert training.penalty_at(1, training.forward()).abs() < 1e-6
