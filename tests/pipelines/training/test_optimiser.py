from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from pipelines.config import TrainingConfig
from pipelines.training.building import build_model
from pipelines.training.examples import Examples, encode
from pipelines.training.optimiser import forget_gate, keep_experts, make_optimiser, replace_gate
from ranking.fitting import EncoderFitter
from ranking.losses import UncertaintyWeighting, task_losses
from ranking.model import Mixture
from ranking.side_tower import SideTower, SideTowerConfig

if TYPE_CHECKING:
    from tests.pipelines.conftest import Shop

Trained = tuple[Mixture, Examples, torch.optim.Optimizer, dict[str, dict[str, Tensor]]]
"""Model, examples, optimiser, and a copy of its state by parameter name."""


@pytest.fixture
def made(shop: Shop) -> tuple[Mixture, Examples]:
    """An untrained model of five experts of two layers, and examples for it."""
    shop.write(shop.table(64))
    (batch,) = shop.reader().clean()
    fitter = EncoderFitter(shop.schema)
    fitter.add(batch.rows)
    encoder = fitter.encoder()
    model = build_model(shop.config(model={"experts": 5, "expert_layers": [6, 4]}), encoder)
    return model, encode(batch.rows, encoder)


def step(model: Mixture, optimiser: torch.optim.Optimizer, examples: Examples, shop: Shop) -> None:
    optimiser.zero_grad(set_to_none=True)
    task_losses(model(examples.inputs), examples.labels, shop.schema.tasks).sum().backward()
    optimiser.step()


class TestGroups:
    def test_hold_every_parameter_once(self, made: tuple[Mixture, Examples]) -> None:
        model, _ = made
        held = [id(p) for group in make_optimiser(model, TrainingConfig()).param_groups for p in group["params"]]
        assert sorted(held) == sorted(id(p) for p in model.parameters())

    def test_hold_the_weighting_before_the_gate_and_let_it_not_decay(
        self, made: tuple[Mixture, Examples], shop: Shop
    ) -> None:
        model, _ = made
        weighting = UncertaintyWeighting(shop.schema.tasks)
        config = TrainingConfig.model_validate({"weight_decay": 0.1, "learning_rate": {"trunk": 0.2}})
        *_, before, gate = make_optimiser(model, config, weighting).param_groups
        assert [id(p) for p in before["params"]] == [id(weighting.log_variances)]
        assert (before["lr"], before["weight_decay"]) == (0.2, 0.0)
        assert [id(p) for p in gate["params"]] == [id(p) for p in model.gate.parameters()]

    def test_hold_the_side_tower_with_the_trunk(self, made: tuple[Mixture, Examples]) -> None:
        model, _ = made
        model.side = SideTower(SideTowerConfig(features=("tab",)), 2, copy.deepcopy(model.embeddings), 0)
        _, trunk, *_ = make_optimiser(model, TrainingConfig()).param_groups
        held = [id(p) for p in trunk["params"]]
        assert len(held) == len(set(held))
        assert {id(p) for p in model.side.parameters()} < set(held)

    def test_have_the_learning_rate_of_their_part(self, made: tuple[Mixture, Examples]) -> None:
        model, _ = made
        config = TrainingConfig.model_validate({"learning_rate": {"embeddings": 0.1, "trunk": 0.2, "gates": 0.3}})
        rates = {
            id(parameter): group["lr"]
            for group in make_optimiser(model, config).param_groups
            for parameter in group["params"]
        }
        assert {rates[id(p)] for p in model.embeddings.parameters()} == {0.1}
        assert {rates[id(p)] for p in model.gate.parameters()} == {0.3}
        for part in (model.norm, model.experts, model.towers, model.output):
            assert {rates[id(p)] for p in part.parameters()} == {0.2}

    def test_decay_experts_and_towers_but_never_gates_or_embeddings(self, made: tuple[Mixture, Examples]) -> None:
        model, _ = made
        optimiser = make_optimiser(model, TrainingConfig(weight_decay=0.5))
        decay = {id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
        assert {decay[id(p)] for p in model.gate.parameters()} == {0.0}
        assert {decay[id(p)] for p in model.embeddings.parameters()} == {0.0}
        assert {decay[id(p)] for p in model.experts.parameters()} == {0.5}
        assert {decay[id(p)] for p in model.towers.parameters()} == {0.5}

    def test_without_a_gradient_only_what_decays_moves(self, made: tuple[Mixture, Examples]) -> None:
        model, _ = made
        optimiser = make_optimiser(model, TrainingConfig(weight_decay=0.5))
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()
        moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
        assert "experts.layers.0.weight" in moved
        assert not [name for name in moved if name.startswith(("gate.", "embeddings."))]


GATES: list[dict[str, Any]] = [
    {"kind": "dselect_k"},
    {"kind": "dselect_k", "per_example": True},
    {"kind": "softmax_selectors"},
    {"kind": "top_k"},
    {"kind": "softmax", "per_example": True},
    {"kind": "gumbel_softmax"},
    {"kind": "attentive"},
]


@pytest.fixture
def make(made: tuple[Mixture, Examples], shop: Shop) -> Callable[[dict[str, Any]], Mixture]:
    """(settings of the gate) → an untrained model of five experts."""
    (batch,) = shop.reader().clean()
    fitter = EncoderFitter(shop.schema)
    fitter.add(batch.rows)
    encoder = fitter.encoder()

    def build(gate: dict[str, Any]) -> Mixture:
        torch.manual_seed(0)
        return build_model(shop.config(model={"experts": 5, "gate": gate}), encoder)

    return build


class TestGates:
    @pytest.mark.parametrize("gate", GATES, ids=str)
    def test_do_not_decay_with_the_trunk(self, make: Callable[[dict[str, Any]], Mixture], gate: dict[str, Any]) -> None:
        """Without a gradient they move as they do without weight decay: not at all."""
        models = [make(gate), make(gate)]
        for model, decay in zip(models, (0.5, 0.0), strict=True):
            with torch.no_grad():
                for parameter in model.gate.parameters():
                    parameter.fill_(0.75)
            optimiser = make_optimiser(model, TrainingConfig(weight_decay=decay))
            for _ in range(3):
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
                optimiser.step()
        decayed, free = (dict(model.named_parameters()) for model in models)
        assert not torch.equal(decayed["experts.layers.0.weight"], free["experts.layers.0.weight"])
        gates = [name for name in free if name.startswith("gate.")]
        assert gates
        for name in gates:
            assert torch.equal(decayed[name], free[name]), name
            assert torch.equal(free[name], torch.full_like(free[name], 0.75)), name

    @pytest.mark.parametrize("gate", GATES, ids=str)
    def test_that_see_examples_learn_at_the_trunks_rate(
        self, make: Callable[[dict[str, Any]], Mixture], gate: dict[str, Any]
    ) -> None:
        config = TrainingConfig.model_validate({"learning_rate": {"trunk": 0.2, "gates": 0.3}})
        model = make(gate)
        group = make_optimiser(model, config).param_groups[-1]
        assert [id(p) for p in group["params"]] == [id(p) for p in model.gate.parameters()]
        assert group["lr"] == (0.2 if model.gate.per_example else 0.3)

    def test_without_parameters_have_no_group(self, make: Callable[[dict[str, Any]], Mixture]) -> None:
        model = make({"kind": "shared_bottom"})
        held = [id(p) for group in make_optimiser(model, TrainingConfig()).param_groups for p in group["params"]]
        assert sorted(held) == sorted(id(p) for p in model.parameters())
        assert all(group["params"] for group in make_optimiser(model, TrainingConfig()).param_groups)

    def test_are_forgotten_alone(self, made: tuple[Mixture, Examples], shop: Shop) -> None:
        model, examples = made
        optimiser = make_optimiser(model, TrainingConfig())
        step(model, optimiser, examples, shop)
        forget_gate(model, optimiser)
        gate = {id(parameter) for parameter in model.gate.parameters()}
        assert {id(p) for p in optimiser.state} == {id(p) for p in model.parameters()} - gate
        step(model, optimiser, examples, shop)
        assert float(optimiser.state[next(model.gate.parameters())]["step"]) == 1
        assert float(optimiser.state[next(model.experts.parameters())]["step"]) == 2

    def test_are_replaced_in_model_and_optimiser(
        self, make: Callable[[dict[str, Any]], Mixture], made: tuple[Mixture, Examples], shop: Shop
    ) -> None:
        model, (_, examples) = make({"kind": "attentive"}), made
        optimiser = make_optimiser(model, TrainingConfig())
        step(model, optimiser, examples, shop)
        old, new = {id(parameter) for parameter in model.gate.parameters()}, model.gate.ordinary()
        replace_gate(model, optimiser, new)
        assert model.gate is new
        assert new.training
        held = {id(p) for group in optimiser.param_groups for p in group["params"]}
        assert held == {id(p) for p in model.parameters()}
        assert not held & old
        assert not {id(p) for p in optimiser.state} & old
        before = [parameter.detach().clone() for parameter in new.parameters()]
        step(model, optimiser, examples, shop)
        assert not any(torch.equal(p, b) for p, b in zip(new.parameters(), before, strict=True))


class TestKeepingExperts:
    KEPT = (1, 3, 4)

    @pytest.fixture
    def trained(self, made: tuple[Mixture, Examples], shop: Shop) -> Trained:
        """After three steps."""
        model, examples = made
        optimiser = make_optimiser(model, TrainingConfig())
        for _ in range(3):
            step(model, optimiser, examples, shop)
        state = {
            name: {key: value.clone() for key, value in optimiser.state[parameter].items()}
            for name, parameter in model.named_parameters()
        }
        return model, examples, optimiser, state

    def test_keeps_adams_moments_of_these_experts_and_of_everything_else(self, trained: Trained) -> None:
        model, _, optimiser, before = trained
        keep_experts(model, optimiser, list(self.KEPT))
        for name, parameter in model.named_parameters():
            after = optimiser.state[parameter]
            for moment in ("exp_avg", "exp_avg_sq"):
                expected = before[name][moment]
                expected = expected[list(self.KEPT)] if name.startswith("experts.") else expected
                assert torch.equal(after[moment], expected), name
                assert after[moment].shape == parameter.shape
            assert torch.equal(after["step"], before[name]["step"]), name

    def test_keeps_no_state_and_no_parameter_of_the_others(self, trained: Trained) -> None:
        model, _, optimiser, _ = trained
        keep_experts(model, optimiser, list(self.KEPT))
        parameters = {id(parameter) for parameter in model.parameters()}
        assert {id(parameter) for parameter in optimiser.state} == parameters
        assert {id(p) for group in optimiser.param_groups for p in group["params"]} == parameters
        assert model.active.tolist() == list(self.KEPT)

    def test_training_goes_on_with_these_experts(self, trained: Trained, shop: Shop) -> None:
        model, examples, optimiser, _ = trained
        keep_experts(model, optimiser, list(self.KEPT))
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        step(model, optimiser, examples, shop)
        for name, parameter in model.named_parameters():
            assert not torch.equal(parameter, before[name]), name

    def test_can_be_done_again(self, trained: Trained, shop: Shop) -> None:
        model, examples, optimiser, before = trained
        keep_experts(model, optimiser, list(self.KEPT))
        keep_experts(model, optimiser, [3])
        assert model.active.tolist() == [3]
        weight = dict(model.named_parameters())["experts.layers.0.weight"]
        assert torch.equal(optimiser.state[weight]["exp_avg"], before["experts.layers.0.weight"]["exp_avg"][[3]])
        step(model, optimiser, examples, shop)

    def test_dropping_experts_that_no_gate_chose_changes_no_output(self, trained: Trained) -> None:
        model, examples, optimiser, _ = trained
        with torch.no_grad():
            model.gate.z.uniform_(-1, 1)
        model.gate.conclude()
        model.eval()
        before = model(examples.inputs)
        keep_experts(model, optimiser, model.gate.selection().experts_used)
        torch.testing.assert_close(model(examples.inputs), before)
