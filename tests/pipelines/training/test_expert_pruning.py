from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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

Trained = tuple[MMoE, DeviceBatch, torch.optim.Optimizer, dict[str, dict[str, Tensor]]]
"""Model, batch, optimizer, and a copy of its state by parameter name."""


def step(model: MMoE, optimizer: torch.optim.Optimizer, batch: DeviceBatch, shop: Shop) -> None:
    optimizer.zero_grad(set_to_none=True)
    task_losses(model(batch.inputs), batch.labels, shop.schema.tasks).sum().backward()
    optimizer.step()


class TestGates:
    def test_that_cannot_serve_are_replaced_in_model_and_optimiser(
        self, make: Callable[[dict[str, Any]], MMoE], made: tuple[MMoE, DeviceBatch], shop: Shop
    ) -> None:
        model, (_, batch) = make({"kind": "attentive"}), made
        optimizer = make_optimizer(model, TrainingConfig())
        step(model, optimizer, batch, shop)
        old = {id(parameter) for parameter in model.gate.parameters()}
        distill(model, optimizer)
        new = model.gate
        assert isinstance(new, Softmax)
        assert new.training
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        assert held == {id(p) for _, p in dense_parameters(model)}
        assert not held & old
        assert not {id(p) for p in optimizer.state} & old
        before = [parameter.detach().clone() for parameter in new.parameters()]
        step(model, optimizer, batch, shop)
        assert not any(torch.equal(p, b) for p, b in zip(new.parameters(), before, strict=True))


class TestKeepingExperts:
    KEPT = (1, 3, 4)

    @pytest.fixture
    def trained(self, made: tuple[MMoE, DeviceBatch], shop: Shop) -> Trained:
        """After three steps."""
        model, batch = made
        optimizer = make_optimizer(model, TrainingConfig())
        for _ in range(3):
            step(model, optimizer, batch, shop)
        state = {
            name: {key: value.clone() for key, value in optimizer.state[parameter].items()}
            for name, parameter in dense_parameters(model)
        }
        return model, batch, optimizer, state

    def test_keeps_adams_moments_of_these_experts_and_of_everything_else(self, trained: Trained) -> None:
        model, _, optimizer, before = trained
        keep_experts(model, optimizer, list(self.KEPT))
        for name, parameter in dense_parameters(model):
            after = optimizer.state[parameter]
            for moment in ("exp_avg", "exp_avg_sq"):
                expected = before[name][moment]
                expected = expected[list(self.KEPT)] if name.startswith("experts.") else expected
                assert torch.equal(after[moment], expected), name
                assert after[moment].shape == parameter.shape
            assert torch.equal(after["step"], before[name]["step"]), name

    def test_keeps_no_state_and_no_parameter_of_the_others(self, trained: Trained) -> None:
        model, _, optimizer, _ = trained
        keep_experts(model, optimizer, list(self.KEPT))
        parameters = {id(parameter) for _, parameter in dense_parameters(model)}
        assert {id(parameter) for parameter in optimizer.state} == parameters
        assert {id(p) for group in optimizer.param_groups for p in group["params"]} == parameters
        assert model.active.tolist() == list(self.KEPT)

    def test_training_goes_on_with_these_experts(self, trained: Trained, shop: Shop) -> None:
        model, batch, optimizer, _ = trained
        keep_experts(model, optimizer, list(self.KEPT))
        before = {name: parameter.detach().clone() for name, parameter in dense_parameters(model)}
        step(model, optimizer, batch, shop)
        for name, parameter in dense_parameters(model):
            assert not torch.equal(parameter, before[name]), name

    def test_can_be_done_again(self, trained: Trained, shop: Shop) -> None:
        model, batch, optimizer, before = trained
        keep_experts(model, optimizer, list(self.KEPT))
        keep_experts(model, optimizer, [3])
        assert model.active.tolist() == [3]
        weight = dict(model.named_parameters())["experts.layers.0.weight"]
        assert torch.equal(optimizer.state[weight]["exp_avg"], before["experts.layers.0.weight"]["exp_avg"][[3]])
        step(model, optimizer, batch, shop)

    def test_dropping_experts_that_no_gate_chose_changes_no_output(self, trained: Trained) -> None:
        model, batch, optimizer, _ = trained
        with torch.no_grad():
            model.gate.z.uniform_(-1, 1)
        model.gate.finalize()
        model.eval()
        before = model(batch.inputs)
        keep_experts(model, optimizer, model.gate.selection().experts_used)
        torch.testing.assert_close(model(batch.inputs), before)
