"""``[model.gate]``: settings of each kind of gate."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from ranking.settings.gate import DSelectKConfig, GateConfig

GATE_CONFIG: TypeAdapter[GateConfig] = TypeAdapter(GateConfig)


def parse_config(**settings: Any) -> GateConfig:
    return GATE_CONFIG.validate_python(settings)


def test_gate_config_without_kind_is_static_dselect_k_with_k_of_two() -> None:
    assert parse_config() == DSelectKConfig(k=2, per_example=False, surplus="fold")
    assert parse_config(k=3) == DSelectKConfig(k=3)


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
