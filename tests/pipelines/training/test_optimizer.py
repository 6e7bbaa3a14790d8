from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pipelines.config.config import TrainingConfig
from pipelines.training.checkpoint import dense_parameters
from pipelines.training.labeled_batch import DeviceBatch
from pipelines.training.optimizer import make_optimizer
from ranking.model.losses import UncertaintyWeighting
from ranking.model.mmoe import MMoE
from ranking.model.position_tower import PositionTower, PositionTowerConfig

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop


class TestGroups:
    def test_hold_every_parameter_but_the_tables_once(self, made: tuple[MMoE, DeviceBatch]) -> None:
        model, _ = made
        held = [id(p) for group in make_optimizer(model, TrainingConfig()).param_groups for p in group["params"]]
        assert sorted(held) == sorted(id(p) for _, p in dense_parameters(model))

    def test_hold_the_weighting_before_the_gate_and_let_it_not_decay(
        self, made: tuple[MMoE, DeviceBatch], shop: Shop
    ) -> None:
        model, _ = made
        weighting = UncertaintyWeighting(shop.schema.tasks)
        config = TrainingConfig.model_validate({"weight_decay": 0.1, "learning_rate": {"trunk": 0.2}})
        *_, before, gate = make_optimizer(model, config, weighting).param_groups
        assert [id(p) for p in before["params"]] == [id(weighting.log_variances)]
        assert (before["lr"], before["weight_decay"]) == (0.2, 0.0)
        assert [id(p) for p in gate["params"]] == [id(p) for p in model.gate.parameters()]

    def test_hold_the_side_tower_with_the_trunk(self, made: tuple[MMoE, DeviceBatch]) -> None:
        model, _ = made
        model.side = PositionTower(PositionTowerConfig(features=("tab",)), 2, copy.deepcopy(model.embeddings), 0)
        trunk, *_ = make_optimizer(model, TrainingConfig()).param_groups
        held = [id(p) for p in trunk["params"]]
        assert len(held) == len(set(held))
        assert {id(p) for p in model.side.parameters()} < set(held)

    def test_have_the_learning_rate_of_their_part(self, made: tuple[MMoE, DeviceBatch]) -> None:
        model, _ = made
        config = TrainingConfig.model_validate({"learning_rate": {"trunk": 0.2, "gates": 0.3}})
        rates = {
            id(parameter): group["lr"]
            for group in make_optimizer(model, config).param_groups
            for parameter in group["params"]
        }
        assert {rates[id(p)] for p in model.gate.parameters()} == {0.3}
        for part in (model.norm, model.experts, model.towers, model.output):
            assert {rates[id(p)] for p in part.parameters()} == {0.2}

    def test_decay_experts_and_towers_but_never_gates(self, made: tuple[MMoE, DeviceBatch]) -> None:
        model, _ = made
        optimizer = make_optimizer(model, TrainingConfig(weight_decay=0.5))
        decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
        assert {decay[id(p)] for p in model.gate.parameters()} == {0.0}
        assert {decay[id(p)] for p in model.experts.parameters()} == {0.5}
        assert {decay[id(p)] for p in model.towers.parameters()} == {0.5}

    def test_without_a_gradient_only_what_decays_moves(self, made: tuple[MMoE, DeviceBatch]) -> None:
        model, _ = made
        optimizer = make_optimizer(model, TrainingConfig(weight_decay=0.5))
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
        assert "experts.layers.0.weight" in moved
        assert not [name for name in moved if name.startswith("gate.")]


GATES: list[dict[str, Any]] = [
    {"kind": "dselect_k"},
    {"kind": "dselect_k", "per_example": True},
    {"kind": "softmax_selectors"},
    {"kind": "top_k"},
    {"kind": "softmax", "per_example": True},
    {"kind": "gumbel_softmax"},
    {"kind": "attentive"},
]


class TestGates:
    @pytest.mark.parametrize("gate", GATES, ids=str)
    def test_do_not_decay_with_the_trunk(self, make: Callable[[dict[str, Any]], MMoE], gate: dict[str, Any]) -> None:
        """Without a gradient they move as they do without weight decay: not at all."""
        models = [make(gate), make(gate)]
        for model, decay in zip(models, (0.5, 0.0), strict=True):
            with torch.no_grad():
                for parameter in model.gate.parameters():
                    parameter.fill_(0.75)
            optimizer = make_optimizer(model, TrainingConfig(weight_decay=decay))
            for _ in range(3):
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
                optimizer.step()
        decayed, free = (dict(model.named_parameters()) for model in models)
        assert not torch.equal(decayed["experts.layers.0.weight"], free["experts.layers.0.weight"])
        gates = [name for name in free if name.startswith("gate.")]
        assert gates
        for name in gates:
            assert torch.equal(decayed[name], free[name]), name
            assert torch.equal(free[name], torch.full_like(free[name], 0.75)), name

    @pytest.mark.parametrize("gate", GATES, ids=str)
    def test_that_see_examples_learn_at_the_trunks_rate(
        self, make: Callable[[dict[str, Any]], MMoE], gate: dict[str, Any]
    ) -> None:
        config = TrainingConfig.model_validate({"learning_rate": {"trunk": 0.2, "gates": 0.3}})
        model = make(gate)
        group = make_optimizer(model, config).param_groups[-1]
        assert [id(p) for p in group["params"]] == [id(p) for p in model.gate.parameters()]
        assert group["lr"] == (0.2 if model.gate.per_example else 0.3)

    def test_without_parameters_have_no_group(self, make: Callable[[dict[str, Any]], MMoE]) -> None:
        model = make({"kind": "shared_bottom"})
        held = [id(p) for group in make_optimizer(model, TrainingConfig()).param_groups for p in group["params"]]
        assert sorted(held) == sorted(id(p) for _, p in dense_parameters(model))
        assert all(group["params"] for group in make_optimizer(model, TrainingConfig()).param_groups)
