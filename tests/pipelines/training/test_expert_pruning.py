from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from pipelines.config.config import TrainingConfig
from pipelines.training.checkpoint import dense_parameters
from pipelines.training.expert_pruning import distill, keep_experts
from pipelines.training.labeled_batch import DeviceBatch
from pipelines.training.optimizer import make_optimizer
from ranking.gates import Softmax
from ranking.model.losses import task_losses
from ranking.model.mmoe import MMoE

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop
    from tests.pipelines.training.conftest import MakeModel

Trained = tuple[MMoE, DeviceBatch, torch.optim.Optimizer, dict[str, dict[str, Tensor]]]
"""Model, batch, optimizer, and a copy of the optimizer state by parameter name."""

KEPT = [1, 3, 4]
BY_EXPERT = ("experts.", "reading.scale", "reading.blocks")
"""Name prefixes of the parameters with a row per expert."""

every_reading = pytest.mark.parametrize("model_and_batch", ["sum", "scaled", "side_by_side"], indirect=True)


def run_step(model: MMoE, optimizer: torch.optim.Optimizer, batch: DeviceBatch, shop: Shop) -> None:
    optimizer.zero_grad(set_to_none=True)
    task_losses(model(batch.inputs), batch.labels, shop.schema.tasks).sum().backward()
    optimizer.step()


@pytest.fixture
def trained(model_and_batch: tuple[MMoE, DeviceBatch], shop: Shop) -> Trained:
    """A model of five experts after three steps."""
    model, batch = model_and_batch
    optimizer = make_optimizer(model, TrainingConfig())
    for _ in range(3):
        run_step(model, optimizer, batch, shop)
    state = {
        name: {key: value.clone() for key, value in optimizer.state[parameter].items()}
        for name, parameter in dense_parameters(model)
    }
    return model, batch, optimizer, state


def test_distill_replaces_the_gate_in_model_and_optimizer(
    make_model: MakeModel, model_and_batch: tuple[MMoE, DeviceBatch], shop: Shop
) -> None:
    model, (_, batch) = make_model({"kind": "attentive"}), model_and_batch
    optimizer = make_optimizer(model, TrainingConfig())
    run_step(model, optimizer, batch, shop)
    old_ids = {id(parameter) for parameter in model.gate.parameters()}
    distill(model, optimizer)
    gate = model.gate
    assert isinstance(gate, Softmax)
    assert gate.training
    optimized_ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert optimized_ids == {id(p) for _, p in dense_parameters(model)}
    assert not optimized_ids & old_ids
    assert not {id(p) for p in optimizer.state} & old_ids
    before = [parameter.detach().clone() for parameter in gate.parameters()]
    run_step(model, optimizer, batch, shop)
    assert not any(torch.equal(p, b) for p, b in zip(gate.parameters(), before, strict=True))


@every_reading
def test_keep_experts_keeps_adam_moments_of_these_experts_and_of_all_other_parts(trained: Trained) -> None:
    model, _, optimizer, before = trained
    keep_experts(model, optimizer, KEPT)
    for name, parameter in dense_parameters(model):
        after = optimizer.state[parameter]
        for moment in ("exp_avg", "exp_avg_sq"):
            expected = before[name][moment]
            expected = expected[KEPT] if name.startswith(BY_EXPERT) else expected
            assert torch.equal(after[moment], expected), name
            assert after[moment].shape == parameter.shape
        assert torch.equal(after["step"], before[name]["step"]), name


@every_reading
def test_keep_experts_removes_parameters_and_state_of_the_other_experts(trained: Trained) -> None:
    model, _, optimizer, _ = trained
    keep_experts(model, optimizer, KEPT)
    parameters = {id(parameter) for _, parameter in dense_parameters(model)}
    assert {id(parameter) for parameter in optimizer.state} == parameters
    assert {id(p) for group in optimizer.param_groups for p in group["params"]} == parameters
    assert model.active.tolist() == KEPT


def test_keep_experts_lets_training_continue_with_these_experts(trained: Trained, shop: Shop) -> None:
    model, batch, optimizer, _ = trained
    keep_experts(model, optimizer, KEPT)
    before = {name: parameter.detach().clone() for name, parameter in dense_parameters(model)}
    run_step(model, optimizer, batch, shop)
    for name, parameter in dense_parameters(model):
        assert not torch.equal(parameter, before[name]), name


def test_keep_experts_twice_keeps_the_state_of_the_last_expert(trained: Trained, shop: Shop) -> None:
    model, batch, optimizer, before = trained
    keep_experts(model, optimizer, KEPT)
    keep_experts(model, optimizer, [3])
    assert model.active.tolist() == [3]
    weight = dict(model.named_parameters())["experts.layers.0.weight"]
    assert torch.equal(optimizer.state[weight]["exp_avg"], before["experts.layers.0.weight"]["exp_avg"][[3]])
    run_step(model, optimizer, batch, shop)


@every_reading
def test_keep_experts_that_the_gate_selected_leaves_outputs_unchanged(trained: Trained) -> None:
    model, batch, optimizer, _ = trained
    with torch.no_grad():
        model.gate.z.uniform_(-1, 1)
    model.gate.finalize()
    model.eval()
    before = model(batch.inputs)
    keep_experts(model, optimizer, model.gate.selection().experts_used)
    torch.testing.assert_close(model(batch.inputs), before)
