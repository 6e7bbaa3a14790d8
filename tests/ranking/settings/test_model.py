"""``[model]``: sizes of the model."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ranking.settings.gate import DSelectKConfig
from ranking.settings.model import ModelConfig


def test_model_config_without_gate_has_a_dselect_k_gate() -> None:
    assert ModelConfig().gate == DSelectKConfig()


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
