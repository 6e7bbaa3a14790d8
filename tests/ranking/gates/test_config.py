"""``[model.gate]``: settings of each kind of gate, and the factory that builds it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from ranking.gates import AttentiveGate, DSelectK, Gate, GumbelSoftmax, SharedBottom, Softmax, SoftmaxSelectors, TopK
from ranking.gates.config import DSelectKConfig, GateConfig, SingleTaskConfig, build_gate
from ranking.model.mmoe import ModelConfig

GATE_CONFIG: TypeAdapter[GateConfig] = TypeAdapter(GateConfig)


def parse_config(**settings: Any) -> GateConfig:
    return GATE_CONFIG.validate_python(settings)


def build(**settings: Any) -> Gate:
    return build_gate(parse_config(**settings), num_tasks=3, num_experts=5, input_size=6, width=4, gamma=0.5)


# Parsing.


def test_gate_config_without_kind_is_static_dselect_k_with_k_of_two() -> None:
    assert parse_config() == DSelectKConfig(k=2, per_example=False, surplus="fold")
    assert parse_config(k=3) == DSelectKConfig(k=3)
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
def test_gate_config_of_every_kind_round_trips_through_json(settings: dict[str, Any]) -> None:
    config = parse_config(**settings)
    assert config.model_dump().items() >= settings.items()
    assert GATE_CONFIG.validate_python(config.model_dump(mode="json")) == config
    assert GATE_CONFIG.validate_python(config) is config


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
def test_gate_config_unknown_or_out_of_range_setting_is_rejected(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        parse_config(**settings)


@pytest.mark.parametrize("kind", ["dselect_k", "top_k", "softmax"])
@pytest.mark.parametrize("name", ["similarity_same", "similarity_different"])
def test_gate_config_similarity_penalty_of_static_gate_is_rejected(kind: str, name: str) -> None:
    with pytest.raises(ValidationError, match="compare examples: set per_example = true"):
        parse_config(kind=kind, **{name: 0.1})
    assert parse_config(kind=kind, per_example=True, **{name: 0.1}).model_dump()[name] == 0.1


# Model configuration.


@pytest.mark.parametrize("kind", ["dselect_k", "top_k", "softmax_selectors"])
def test_model_config_k_above_number_of_experts_is_rejected(kind: str) -> None:
    with pytest.raises(ValidationError, match=r"gate\.k = 4 exceeds the 3 experts: choose k ≤ experts"):
        ModelConfig.model_validate({"experts": 3, "gate": {"kind": kind, "k": 4}})


def test_model_config_experts_budget_above_number_of_experts_is_rejected() -> None:
    with pytest.raises(ValidationError, match=r"gate\.experts_budget = 4 exceeds the 3 experts"):
        ModelConfig.model_validate({"experts": 3, "gate": {"experts_budget": 4}})
    assert ModelConfig.model_validate({"experts": 3, "gate": {"experts_budget": 3}}).num_experts == 3


def test_model_config_shared_bottom_has_one_expert() -> None:
    assert ModelConfig.model_validate({"experts": 8, "gate": {"kind": "shared_bottom"}}).num_experts == 1
    assert ModelConfig.model_validate({"experts": 8, "gate": {"kind": "softmax"}}).num_experts == 8


# Construction.


@pytest.mark.parametrize(
    ("kind", "gate_class", "k"),
    [
        ("dselect_k", DSelectK, 3),
        ("top_k", TopK, 3),
        ("softmax_selectors", SoftmaxSelectors, 3),
        ("softmax", Softmax, 5),
        ("gumbel_softmax", GumbelSoftmax, 5),
        ("attentive", AttentiveGate, 5),
    ],
)
def test_build_gate_returns_gate_class_of_kind(kind: str, gate_class: type[Gate], k: int) -> None:
    gate = build(kind=kind, **({"k": k} if k == 3 else {}))
    assert type(gate) is gate_class
    assert (gate.num_tasks, gate.num_experts, gate.k) == (3, 5, k)
    assert gate.input_size == (6 if kind == "attentive" else None)


@pytest.mark.parametrize("kind", ["dselect_k", "top_k", "softmax"])
def test_build_gate_per_example_gate_has_input_size_of_model(kind: str) -> None:
    assert build(kind=kind, per_example=True).input_size == 6


def test_build_gate_passes_settings_to_gate() -> None:
    gate = build(surplus="penalty")
    assert isinstance(gate, DSelectK)
    assert gate.expert_of_code.tolist() == [0, 1, 2, 3, 4, 5, 5, 5]
    assert float(gate.gamma) == 0.5
    noisy = build(kind="top_k", noise=True)
    assert isinstance(noisy, TopK)
    assert noisy.noise
    attentive = build(kind="attentive")
    assert isinstance(attentive, AttentiveGate)
    assert attentive.width == 4


def test_build_gate_shared_bottom_has_one_expert() -> None:
    gate = build_gate(parse_config(kind="shared_bottom"), num_tasks=3, num_experts=1, input_size=6, width=4)
    assert isinstance(gate, SharedBottom)
    assert (gate.num_tasks, gate.num_experts) == (3, 1)


@pytest.mark.parametrize("kind", ["dselect_k", "top_k", "softmax_selectors"])
def test_build_gate_k_above_number_of_experts_is_rejected(kind: str) -> None:
    with pytest.raises(ValueError, match="k = 6: choose 1 ≤ k ≤ num_experts = 5"):
        build(kind=kind, k=6)


def test_build_gate_single_task_is_rejected() -> None:
    with pytest.raises(ValueError, match="single_task trains one model per task"):
        build_gate(SingleTaskConfig(kind="single_task"), 3, 5, 6, 4)
