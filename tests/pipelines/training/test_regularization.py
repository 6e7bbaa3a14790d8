"""Which penalty acts when, and how much of it is added to the loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pipelines.config.config import ConvergenceConfig
from pipelines.training.gate_schedule import GateSchedule
from pipelines.training.regularization import Regularization
from ranking.gates import DSelectK, Gate, GumbelSoftmax, regularizers
from ranking.gates.config import (
    AttentiveConfig,
    DSelectKConfig,
    GateConfig,
    GumbelSoftmaxConfig,
    SharedBottomConfig,
    SoftmaxConfig,
    SoftmaxSelectorsConfig,
    TopKConfig,
    build_gate,
)
from ranking.model.mmoe import ForwardOutput

STEPS = 200
CONFIG = ConvergenceConfig(gamma=2.0, anneal_from=0.25, anneal_until=0.6, overlap_until=0.5)
"""The ramp goes from step 50 to 120, where the choice becomes final; overlap has faded at step 100."""

TASKS, EXPERTS, INPUTS = 3, 6, 5

EVERY_PENALTY: dict[str, Any] = {
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


class Training:
    """A gate on its way, and the penalties of its settings."""

    def __init__(self, settings: GateConfig) -> None:
        self.gate: Gate = build_gate(settings, TASKS, EXPERTS, INPUTS, 8, CONFIG.gamma)
        self.schedule = GateSchedule(CONFIG, self.gate, STEPS)
        self.penalty = Regularization(settings, CONFIG, self.schedule, STEPS)

    def to(self, step: int) -> Training:
        """Every step up to this one is done."""
        for number in range(1, step + 1):
            self.schedule.begin_step(number)
            self.schedule.end_step(number, torch.ones(TASKS, EXPERTS))
        return self

    def trace(self) -> ForwardOutput:
        x = torch.randn(16, INPUTS)
        outputs = torch.randn(EXPERTS, 16, 8)
        return ForwardOutput(torch.zeros(16, TASKS), x, self.gate.route(x, outputs))

    def added(self, step: int, done: ForwardOutput) -> Tensor:
        return torch.as_tensor(self.penalty(step, self.gate, done)).detach()

    def course(self, name: str) -> list[float]:
        """Weight of one penalty at each step of the training, the first first."""
        weights = []
        for step in range(1, STEPS + 1):
            self.schedule.begin_step(step)
            weights.append(self.penalty.weights(step).get(name, 0.0))
            self.schedule.end_step(step, torch.ones(TASKS, EXPERTS))
        return weights


class TestSchedule:
    def test_entropy_rises_from_nothing_to_its_weight_over_the_ramp_and_ends_with_the_choice(self) -> None:
        course = Training(DSelectKConfig(entropy_weight=0.5)).course("entropy")
        assert course[:50] == [0.0] * 50
        assert course[50:120] == pytest.approx([0.5 * i / 70 for i in range(1, 71)])
        assert course[119] == pytest.approx(0.5)
        assert course[120:] == [0.0] * 80

    def test_overlap_fades_linearly_to_nothing_and_stays_there(self) -> None:
        course = Training(DSelectKConfig(overlap_weight=0.4)).course("overlap")
        assert course == pytest.approx([max(0.0, 0.4 * (1 - step / 100)) for step in range(1, STEPS + 1)])
        assert course[99:] == [0.0] * 101

    def test_overlap_that_would_fade_later_ends_with_the_choice(self) -> None:
        training = Training(DSelectKConfig(overlap_weight=0.4))
        late = CONFIG.model_copy(update={"overlap_until": 1.0})
        penalty = Regularization(DSelectKConfig(overlap_weight=0.4), late, training.schedule, STEPS)
        assert penalty.weights(120)["overlap"] == pytest.approx(0.16)
        training.to(120)
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
    def test_union_surplus_and_sparsity_act_until_the_choice(self, name: str, settings: GateConfig) -> None:
        assert Training(settings).course(name) == [0.2] * 120 + [0.0] * 80

    @pytest.mark.parametrize(
        "settings",
        [
            DSelectKConfig(importance_weight=0.1),
            TopKConfig(kind="top_k", importance_weight=0.1),
            GumbelSoftmaxConfig(kind="gumbel_softmax", importance_weight=0.1),
            AttentiveConfig(kind="attentive", importance_weight=0.1),
        ],
    )
    def test_importance_acts_throughout(self, settings: GateConfig) -> None:
        assert Training(settings).course("importance") == [0.1] * STEPS

    @pytest.mark.parametrize("key", ["similarity_same", "similarity_different"])
    @pytest.mark.parametrize("kind", [DSelectKConfig, TopKConfig, SoftmaxConfig, AttentiveConfig])
    def test_similarity_acts_throughout_with_its_own_weights(self, kind: type[Any], key: str) -> None:
        document = {"kind": kind.model_fields["kind"].annotation.__args__[0], key: 0.3}
        if kind is not AttentiveConfig:
            document["per_example"] = True
        assert Training(kind(**document)).course("similarity") == [1.0] * STEPS

    def test_surplus_weighs_nothing_unless_it_is_what_becomes_of_surplus_codes(self) -> None:
        for surplus in ("fold", "random"):
            training = Training(DSelectKConfig(surplus=surplus, surplus_weight=0.6))
            assert training.course("surplus") == [0.0] * STEPS


class TestWhatIsAdded:
    def test_is_every_penalty_by_its_weight(self) -> None:
        training = Training(DSelectKConfig(**EVERY_PENALTY)).to(69)
        training.schedule.begin_step(70)
        done = training.trace()
        weights, selectors = done.routing
        assert selectors is not None
        expected = 0.1 * regularizers.importance(weights)
        expected += regularizers.sample_similarity(weights, done.x, 0.7, 0.8)
        expected += 0.2 * regularizers.expected_union(selectors, torch.full((EXPERTS,), 1 / EXPERTS))
        expected += 0.4 * (1 - 70 / 100) * regularizers.overlap(selectors)
        expected += 0.5 * (70 - 50) / 70 * regularizers.entropy(selectors)
        expected += 0.6 * regularizers.surplus(selectors)
        torch.testing.assert_close(training.added(70, done), expected.detach())

    def test_is_what_stays_once_the_choice_is_final(self) -> None:
        training = Training(DSelectKConfig(**EVERY_PENALTY)).to(120)
        done = training.trace()
        expected = 0.1 * regularizers.importance(done.routing.weights)
        expected += regularizers.sample_similarity(done.routing.weights, done.x, 0.7, 0.8)
        torch.testing.assert_close(training.added(121, done), expected.detach())

    def test_is_log_psi_for_gumbel(self) -> None:
        training = Training(GumbelSoftmaxConfig(kind="gumbel_softmax", sparsity_weight=0.2))
        gate = training.gate
        assert isinstance(gate, GumbelSoftmax)
        torch.testing.assert_close(training.added(1, training.trace()), 0.2 * gate.log_psi().detach())

    @pytest.mark.parametrize(
        "settings", KINDS, ids=lambda s: f"{s.kind}{' per example' * getattr(s, 'per_example', 0)}"
    )
    def test_is_nothing_if_nothing_is_asked_for(self, settings: GateConfig) -> None:
        free = settings.model_copy(
            update={name: 0.0 for name in type(settings).model_fields if name.endswith("_weight")}
        )
        training = Training(free)
        for step in (1, 49, 50, 70, 119):
            assert training.penalty.weights(step) == {}
            assert training.added(step, training.trace()) == 0.0

    @pytest.mark.parametrize(
        "settings", KINDS, ids=lambda s: f"{s.kind}{' per example' * getattr(s, 'per_example', 0)}"
    )
    def test_has_only_penalties_that_the_kind_has_settings_for(self, settings: GateConfig) -> None:
        """By default: overlap for gates of selectors, sparsity for Gumbel's."""
        named = {f"{name}_weight" for name in Training(settings).penalty.weights(1)}
        assert named <= set(type(settings).model_fields)
        expected = {"dselect_k": {"overlap_weight"}, "softmax_selectors": {"overlap_weight"}}
        assert named == {**expected, "gumbel_softmax": {"sparsity_weight"}}.get(settings.kind, set())

    def test_pushes_selectors_that_agree_apart(self) -> None:
        training = Training(DSelectKConfig(overlap_weight=1.0))
        gate = training.gate
        assert isinstance(gate, DSelectK)
        with torch.no_grad():
            gate.z.copy_(torch.tensor([[0.2, 0.1, 0.1], [0.15, 0.12, 0.1]]).expand(TASKS, 2, 3))
        before = regularizers.overlap(gate.selectors()).detach()
        torch.as_tensor(training.penalty(1, gate, training.trace())).backward()
        with torch.no_grad():
            assert gate.z.grad is not None
            gate.z -= 0.1 * gate.z.grad
        assert regularizers.overlap(gate.selectors()) < before

    def test_leaves_a_single_selector_alone(self) -> None:
        training = Training(DSelectKConfig(k=1, overlap_weight=1.0))
        assert training.added(1, training.trace()).abs() < 1e-6
