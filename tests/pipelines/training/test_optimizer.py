from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pipelines.config.config import TrainingConfig
from pipelines.training.checkpoint import dense_parameters
from pipelines.training.labeled_batch import DeviceBatch
from pipelines.training.optimizer import make_optimizer
from ranking.model.losses import UncertaintyWeighting
from ranking.model.mmoe import MMoE
from ranking.model.position_tower import PositionTower
from ranking.settings.model import PositionTowerConfig

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop
    from tests.pipelines.training.conftest import MakeModel

GATES: list[dict[str, Any]] = [
    {"kind": "dselect_k"},
    {"kind": "dselect_k", "per_example": True},
    {"kind": "softmax_selectors"},
    {"kind": "top_k"},
    {"kind": "softmax", "per_example": True},
    {"kind": "gumbel_softmax"},
    {"kind": "attentive"},
]


def test_parameter_groups_contain_every_parameter_except_tables_once(model_and_batch: tuple[MMoE, DeviceBatch]) -> None:
    model, _ = model_and_batch
    ids = [id(p) for group in make_optimizer(model, TrainingConfig()).param_groups for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for _, p in dense_parameters(model))


def test_weighting_group_precedes_the_gate_and_has_no_weight_decay(
    model_and_batch: tuple[MMoE, DeviceBatch], shop: Shop
) -> None:
    model, _ = model_and_batch
    weighting = UncertaintyWeighting(shop.schema.tasks)
    config = TrainingConfig.model_validate({"weight_decay": 0.1, "learning_rate": {"trunk": 0.2}})
    *_, weighting_group, gate_group = make_optimizer(model, config, weighting).param_groups
    assert [id(p) for p in weighting_group["params"]] == [id(weighting.log_variances)]
    assert (weighting_group["lr"], weighting_group["weight_decay"]) == (0.2, 0.0)
    assert [id(p) for p in gate_group["params"]] == [id(p) for p in model.gate.parameters()]


def test_trunk_group_contains_the_position_tower(model_and_batch: tuple[MMoE, DeviceBatch]) -> None:
    model, _ = model_and_batch
    model.side = PositionTower(PositionTowerConfig(features=("tab",)), 2, copy.deepcopy(model.embeddings), 0)
    trunk, *_ = make_optimizer(model, TrainingConfig()).param_groups
    ids = [id(p) for p in trunk["params"]]
    assert len(ids) == len(set(ids))
    assert {id(p) for p in model.side.parameters()} < set(ids)


def test_parameter_groups_have_the_learning_rate_of_their_part(model_and_batch: tuple[MMoE, DeviceBatch]) -> None:
    model, _ = model_and_batch
    config = TrainingConfig.model_validate({"learning_rate": {"trunk": 0.2, "gates": 0.3}})
    groups = make_optimizer(model, config).param_groups
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    assert {rates[id(p)] for p in model.gate.parameters()} == {0.3}
    for module in (model.norm, model.experts, model.towers, model.output):
        assert {rates[id(p)] for p in module.parameters()} == {0.2}


def test_weight_decay_applies_to_experts_and_towers_but_not_to_gates(model_and_batch: tuple[MMoE, DeviceBatch]) -> None:
    model, _ = model_and_batch
    optimizer = make_optimizer(model, TrainingConfig(weight_decay=0.5))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {decay[id(p)] for p in model.gate.parameters()} == {0.0}
    assert {decay[id(p)] for p in model.experts.parameters()} == {0.5}
    assert {decay[id(p)] for p in model.towers.parameters()} == {0.5}


def test_step_with_zero_gradients_changes_only_parameters_with_weight_decay(
    model_and_batch: tuple[MMoE, DeviceBatch],
) -> None:
    model, _ = model_and_batch
    optimizer = make_optimizer(model, TrainingConfig(weight_decay=0.5))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert "experts.layers.0.weight" in changed
    assert not [name for name in changed if name.startswith("gate.")]


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_gate_of_every_kind_does_not_decay_with_the_trunk(make_model: MakeModel, gate: dict[str, Any]) -> None:
    models = [make_model(gate), make_model(gate)]
    for model, decay in zip(models, (0.5, 0.0), strict=True):
        with torch.no_grad():
            for parameter in model.gate.parameters():
                parameter.fill_(0.75)
        optimizer = make_optimizer(model, TrainingConfig(weight_decay=decay))
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
    decayed, constant = (dict(model.named_parameters()) for model in models)
    assert not torch.equal(decayed["experts.layers.0.weight"], constant["experts.layers.0.weight"])
    gate_names = [name for name in constant if name.startswith("gate.")]
    assert gate_names
    for name in gate_names:
        assert torch.equal(decayed[name], constant[name]), name
        assert torch.equal(constant[name], torch.full_like(constant[name], 0.75)), name


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_gate_learning_rate_is_that_of_the_trunk_if_the_gate_is_per_example(
    make_model: MakeModel, gate: dict[str, Any]
) -> None:
    config = TrainingConfig.model_validate({"learning_rate": {"trunk": 0.2, "gates": 0.3}})
    model = make_model(gate)
    group = make_optimizer(model, config).param_groups[-1]
    assert [id(p) for p in group["params"]] == [id(p) for p in model.gate.parameters()]
    assert group["lr"] == (0.2 if model.gate.per_example else 0.3)


def test_gate_without_parameters_has_no_parameter_group(make_model: MakeModel) -> None:
    model = make_model({"kind": "shared_bottom"})
    groups = make_optimizer(model, TrainingConfig()).param_groups
    ids = [id(p) for group in groups for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for _, p in dense_parameters(model))
    assert all(group["params"] for group in groups)
