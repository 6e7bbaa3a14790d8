"""The factory that builds the gate of ``[model.gate]``."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from ranking.gates import AttentiveGate, DSelectK, Gate, GumbelSoftmax, SharedBottom, Softmax, SoftmaxSelectors, TopK
from ranking.gates.factory import build_gate
from ranking.settings.gate import GateConfig, SingleTaskConfig

GATE_CONFIG: TypeAdapter[GateConfig] = TypeAdapter(GateConfig)


def parse_config(**settings: Any) -> GateConfig:
    return GATE_CONFIG.validate_python(settings)


def build(**settings: Any) -> Gate:
    return build_gate(parse_config(**settings), num_tasks=3, num_experts=5, input_size=6, width=4, gamma=0.5)


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
