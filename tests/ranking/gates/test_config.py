"""``[model.gate]``: each kind of gate, its settings, and how it is built."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from ranking.gates import AttentiveGate, DSelectK, Gate, GumbelSoftmax, SharedBottom, Softmax, SoftmaxSelectors, TopK
from ranking.gates.config import DSelectKConfig, GateConfig, SingleTaskConfig, build_gate
from ranking.model.mmoe import ModelConfig

SETTINGS: TypeAdapter[GateConfig] = TypeAdapter(GateConfig)


def parsed(**settings: Any) -> GateConfig:
    return SETTINGS.validate_python(settings)


def built(**settings: Any) -> Gate:
    return build_gate(parsed(**settings), num_tasks=3, num_experts=5, input_size=6, width=4, gamma=0.5)


# What is read.


def test_without_a_kind_it_is_a_static_dselect_k_gate_of_two() -> None:
    assert parsed() == DSelectKConfig(k=2, per_example=False, surplus="fold")
    assert parsed(k=3) == DSelectKConfig(k=3)
    assert ModelConfig().gate == DSelectKConfig()


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "dselect_k", "k": 3, "per_example": True, "similarity_same": 0.1, "experts_budget": 4},
        {"kind": "top_k", "noise": True, "importance_weight": 0.5},
        {"kind": "softmax", "per_example": True},
        {"kind": "gumbel_softmax", "sparsity_weight": 0.2},
        {"kind": "softmax_selectors", "k": 1, "entropy_weight": 0.1},
        {"kind": "attentive", "similarity_different": 0.1},
        {"kind": "shared_bottom"},
        {"kind": "single_task"},
    ],
    ids=lambda settings: settings["kind"],
)
def test_every_kind_reads_back_what_it_writes(settings: dict[str, Any]) -> None:
    config = parsed(**settings)
    assert config.model_dump().items() >= settings.items()
    assert SETTINGS.validate_python(config.model_dump(mode="json")) == config
    assert SETTINGS.validate_python(config) is config


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"kind": "sparse"}, "sparse"),
        ({"k": 0}, "k"),
        ({"k": 1.5}, "k"),
        ({"surplus": "ignore"}, "surplus"),
        ({"surplus_weight": -1.0}, "surplus_weight"),
        ({"experts_budget": 0}, "experts_budget"),
        ({"overlap_weight": -0.1}, "overlap_weight"),
        ({"kind": "softmax", "k": 2}, "k"),
        ({"kind": "top_k", "overlap_weight": 0.1}, "overlap_weight"),
        ({"kind": "top_k", "experts_budget": 2}, "experts_budget"),
        ({"kind": "gumbel_softmax", "per_example": True}, "per_example"),
        ({"kind": "softmax_selectors", "per_example": True}, "per_example"),
        ({"kind": "shared_bottom", "importance_weight": 0.1}, "importance_weight"),
    ],
    ids=str,
)
def test_a_setting_that_its_kind_does_not_have_or_out_of_range_is_refused(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem):
        parsed(**settings)


@pytest.mark.parametrize("kind", ["dselect_k", "top_k", "softmax"])
@pytest.mark.parametrize("name", ["similarity_same", "similarity_different"])
def test_examples_are_compared_by_a_per_example_gate_only(kind: str, name: str) -> None:
    with pytest.raises(ValidationError, match="compare examples: set per_example = true"):
        parsed(kind=kind, **{name: 0.1})
    assert parsed(kind=kind, per_example=True, **{name: 0.1}).model_dump()[name] == 0.1


# In a model.


@pytest.mark.parametrize("kind", ["dselect_k", "top_k", "softmax_selectors"])
def test_a_task_cannot_use_more_experts_than_there_are(kind: str) -> None:
    with pytest.raises(ValidationError, match=r"gate\.k = 4 exceeds the 3 experts: choose k ≤ experts"):
        ModelConfig.model_validate({"experts": 3, "gate": {"kind": kind, "k": 4}})


def test_a_budget_is_of_experts_that_there_are() -> None:
    with pytest.raises(ValidationError, match=r"gate\.experts_budget = 4 exceeds the 3 experts"):
        ModelConfig.model_validate({"experts": 3, "gate": {"experts_budget": 4}})
    assert ModelConfig.model_validate({"experts": 3, "gate": {"experts_budget": 3}}).num_experts == 3


def test_a_shared_bottom_is_one_expert_whatever_the_model_says() -> None:
    assert ModelConfig.model_validate({"experts": 8, "gate": {"kind": "shared_bottom"}}).num_experts == 1
    assert ModelConfig.model_validate({"experts": 8, "gate": {"kind": "softmax"}}).num_experts == 8


# What is built.


@pytest.mark.parametrize(
    ("kind", "gate", "k"),
    [
        ("dselect_k", DSelectK, 3),
        ("top_k", TopK, 3),
        ("softmax_selectors", SoftmaxSelectors, 3),
        ("softmax", Softmax, 5),
        ("gumbel_softmax", GumbelSoftmax, 5),
        ("attentive", AttentiveGate, 5),
    ],
)
def test_each_kind_builds_its_gate(kind: str, gate: type[Gate], k: int) -> None:
    found = built(kind=kind, **({"k": k} if k == 3 else {}))
    assert type(found) is gate
    assert (found.num_tasks, found.num_experts, found.k) == (3, 5, k)
    assert found.input_size == (6 if kind == "attentive" else None)


@pytest.mark.parametrize("kind", ["dselect_k", "top_k", "softmax"])
def test_a_per_example_gate_reads_the_models_inputs(kind: str) -> None:
    assert built(kind=kind, per_example=True).input_size == 6


def test_settings_reach_the_gate() -> None:
    gate = built(surplus="penalty")
    assert isinstance(gate, DSelectK)
    assert gate.expert_of_code.tolist() == [0, 1, 2, 3, 4, 5, 5, 5]
    assert float(gate.gamma) == 0.5
    noisy = built(kind="top_k", noise=True)
    assert isinstance(noisy, TopK)
    assert noisy.noise
    attentive = built(kind="attentive")
    assert isinstance(attentive, AttentiveGate)
    assert attentive.width == 4


def test_a_shared_bottom_is_built_with_its_one_expert() -> None:
    gate = build_gate(parsed(kind="shared_bottom"), num_tasks=3, num_experts=1, input_size=6, width=4)
    assert isinstance(gate, SharedBottom)
    assert (gate.num_tasks, gate.num_experts) == (3, 1)


@pytest.mark.parametrize("kind", ["dselect_k", "top_k", "softmax_selectors"])
def test_more_selectors_than_experts_build_nothing(kind: str) -> None:
    with pytest.raises(ValueError, match="k = 6: choose 1 ≤ k ≤ num_experts = 5"):
        built(kind=kind, k=6)


def test_single_tasks_have_no_gate() -> None:
    with pytest.raises(ValueError, match="single_task trains one model per task"):
        build_gate(SingleTaskConfig(kind="single_task"), 3, 5, 6, 4)
