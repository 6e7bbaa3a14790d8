from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipelines.config.config import ConvergenceConfig
from pipelines.training.gate_schedule import GateSchedule
from ranking.gates import AttentiveGate, DSelectK, Gate, GumbelSoftmax, SharedBottom, Softmax, SoftmaxSelectors, TopK

STEPS = 200
CONFIG = ConvergenceConfig(
    gamma=2.0,
    final_gamma=2e-3,
    anneal_from=0.25,
    anneal_until=0.6,
    hold_alpha_until=0.4,
    overlap_until=0.5,
)


def make(config: ConvergenceConfig = CONFIG, experts: int = 8, k: int = 2, steps: int = STEPS) -> GateSchedule:
    return GateSchedule(config, DSelectK(3, experts, k, config.gamma), steps)


def learn(
    gate: Gate,
    steps: int = STEPS,
    config: ConvergenceConfig = CONFIG,
    seed: int = 0,
    budget: int | None = None,
    x: Tensor | None = None,
) -> GateSchedule:
    """Trains a gate alone: each expert costs something, another sum for each task."""
    schedule = GateSchedule(config, gate, steps, budget)
    optimizer = torch.optim.Adam(gate.parameters(), 0.01)
    go_on(gate, schedule, optimizer, range(1, steps + 1), seed, x)
    return schedule


def go_on(
    gate: Gate,
    schedule: GateSchedule,
    optimizer: torch.optim.Optimizer,
    steps: range,
    seed: int = 0,
    x: Tensor | None = None,
) -> None:
    """Trains a gate for these steps."""
    costs = torch.randn(gate.num_tasks, gate.num_experts, generator=torch.Generator().manual_seed(seed))
    for step in steps:
        schedule.begin_step(step)
        weights = gate(x)
        loss = (weights * costs).sum()
        optimizer.zero_grad()
        if loss.requires_grad:
            loss.backward()
            optimizer.step()
        schedule.end_step(step, weights)


class TestGamma:
    def test_stays_until_the_ramp(self) -> None:
        schedule = make()
        assert {schedule.gamma_at(step) for step in range(1, 51)} == {2.0}

    def test_falls_by_the_same_factor_at_every_step_of_the_ramp(self) -> None:
        schedule = make()
        ramp = [schedule.gamma_at(step) for step in range(50, 121)]
        factors = [after / before for before, after in pairwise(ramp)]
        assert factors == pytest.approx([factors[0]] * len(factors))
        assert factors[0] == pytest.approx(1e-3 ** (1 / 70))

    def test_reaches_its_final_value_at_the_end_of_the_ramp_and_keeps_it(self) -> None:
        schedule = make()
        assert schedule.finalize_step == 120
        assert schedule.gamma_at(120) == pytest.approx(2e-3)
        assert schedule.gamma_at(STEPS) == pytest.approx(2e-3)

    @settings(deadline=None, max_examples=100)
    @given(steps=st.integers(1, 500), start=st.floats(0, 0.5), length=st.floats(0.01, 0.49))
    def test_never_rises_and_never_leaves_its_bounds(self, steps: int, start: float, length: float) -> None:
        config = ConvergenceConfig(
            gamma=3.0, final_gamma=0.01, anneal_from=start, anneal_until=start + length, budget_at=0.0
        )
        schedule = make(config, steps=steps)
        gammas = [schedule.gamma_at(step) for step in range(1, steps + 1)]
        assert all(after <= before for before, after in pairwise(gammas))
        assert all(0.0099 < gamma <= 3.0 for gamma in gammas)

    def test_is_set_on_the_gate_before_each_step(self) -> None:
        gate = DSelectK(1, 4, 2, CONFIG.gamma)
        schedule = GateSchedule(CONFIG, gate, STEPS)
        for step in (1, 60, 100):
            schedule.begin_step(step)
            assert float(gate.gamma) == pytest.approx(schedule.gamma_at(step))

    def test_means_the_same_for_every_number_of_steps(self) -> None:
        short, long = make(steps=100), make(steps=1000)
        assert [short.gamma_at(s) for s in (10, 40, 60)] == pytest.approx([long.gamma_at(s) for s in (100, 400, 600)])


class TestAlpha:
    def gradient(self, step: int) -> Tensor | None:
        gate = DSelectK(2, 4, 2, CONFIG.gamma)
        schedule = GateSchedule(CONFIG, gate, STEPS)
        schedule.begin_step(step)
        (gate() * torch.arange(4)).sum().backward()
        return gate.alpha.grad

    @pytest.mark.parametrize("step", [1, 40, 80])
    def test_has_no_gradient_while_it_is_held(self, step: int) -> None:
        assert self.gradient(step) is None

    @pytest.mark.parametrize("step", [81, 120, STEPS])
    def test_has_one_afterwards(self, step: int) -> None:
        gradient = self.gradient(step)
        assert gradient is not None
        assert bool((gradient != 0).any())

    @pytest.mark.parametrize("hold", [0.0, 1.0])
    def test_weighs_a_tasks_selectors_alike_until_then(self, hold: float) -> None:
        gate = DSelectK(2, 8, 3, CONFIG.gamma)
        learn(gate, config=CONFIG.model_copy(update={"hold_alpha_until": hold}))
        alike = torch.equal(gate.alpha, torch.zeros(2, 3))
        assert alike == (hold == 1.0)


class TestEndOfTheSelection:
    @pytest.mark.parametrize("steps", [1, 2, 3, 10, 100])
    def test_comes_exactly_once_whatever_the_number_of_steps(self, steps: int) -> None:
        schedule = make(steps=steps)
        ends = []
        for step in range(1, steps + 1):
            schedule.begin_step(step)
            assert schedule.phase() == ("selected" if ends else "selecting")
            if schedule.end_step(step, torch.ones(3, 8)):
                ends.append(step)
        assert ends == [schedule.finalize_step]
        assert schedule.done
        assert schedule.phase() == "selected"

    @pytest.mark.parametrize("experts", [1, 2, 3, 5, 8, 12])
    @pytest.mark.parametrize("seed", range(5))
    def test_finds_every_gate_exactly_binary(self, experts: int, seed: int) -> None:
        torch.manual_seed(seed)
        gate = DSelectK(2, experts, min(2, experts), CONFIG.gamma)
        schedule = learn(gate, steps=80, seed=seed)
        assert schedule.done
        selectors = gate.selectors()
        assert torch.equal(selectors.sum(-1), torch.ones(2, gate.k))
        assert bool(((selectors == 0) | (selectors == 1)).all())
        assert bool(gate.converged().all())
        weights = gate()
        assert bool(((weights > 0).sum(1) <= gate.k).all())
        assert torch.allclose(weights.sum(1), torch.ones(2))
        chosen = gate.selection().tasks
        assert {task: set(experts) for task, experts in chosen.items()} == {
            str(t): set(row.nonzero().flatten().tolist()) for t, row in enumerate(weights)
        }

    def test_needs_no_snap_where_the_ramp_could_do_its_work(self) -> None:
        for seed in range(5):
            torch.manual_seed(seed)
            schedule = learn(DSelectK(2, 8, 2, CONFIG.gamma), seed=seed)
            assert schedule.snapped_codes == 0
            assert schedule.binary_at_step is not None
            assert schedule.binary_at_step <= schedule.finalize_step

    def test_chooses_experts_that_cost_less_than_the_average(self) -> None:
        costs = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
        gate = DSelectK(3, 8, 1, CONFIG.gamma)
        learn(gate, steps=400)
        chosen = [next(iter(experts)) for experts in gate.selection().tasks.values()]
        mean = costs.mean(1)
        assert all(float(costs[task, expert]) < float(mean[task]) for task, expert in enumerate(chosen))

    def test_snaps_codes_that_are_not_binary_yet_and_counts_their_selectors(self) -> None:
        gate = DSelectK(2, 8, 2, CONFIG.gamma)
        schedule = GateSchedule(CONFIG, gate, STEPS)
        with torch.no_grad():
            gate.z.fill_(1.0)
            gate.z[0, 1, 2] = 1e-6  # one code of one selector
        schedule.begin_step(schedule.finalize_step)
        assert schedule.end_step(schedule.finalize_step, gate())
        assert schedule.snapped_codes == 1
        assert bool(gate.converged().all())
        assert schedule.binary_at_step == schedule.finalize_step

    def test_notes_when_the_codes_became_binary_for_good(self) -> None:
        gate = DSelectK(1, 4, 1, CONFIG.gamma)
        schedule = GateSchedule(CONFIG, gate, STEPS)

        def step(number: int, z: float) -> None:
            with torch.no_grad():
                gate.z.fill_(z)
            schedule.begin_step(number)
            schedule.end_step(number, gate())

        step(1, 5.0)
        assert schedule.binary_at_step == 1
        step(2, 0.1)
        assert schedule.binary_at_step is None
        step(3, -5.0)
        step(4, -5.0)
        assert schedule.binary_at_step == 3

    def test_leaves_the_choice_as_it_is_for_the_rest_of_the_training(self) -> None:
        gate = DSelectK(3, 8, 2, CONFIG.gamma)
        choices = []
        costs = torch.randn(3, 8)
        schedule = GateSchedule(CONFIG, gate, STEPS)
        optimizer = torch.optim.Adam(gate.parameters(), 0.01)
        for number in range(1, STEPS + 1):
            schedule.begin_step(number)
            optimizer.zero_grad()
            weights = gate()
            (weights * costs).sum().backward()
            optimizer.step()
            schedule.end_step(number, weights)
            if schedule.done:
                choices.append((gate.codes().tolist(), float(gate.gamma)))
        assert len(choices) == STEPS - 120 + 1
        assert all(choice == choices[0] for choice in choices)
        assert not gate.z.requires_grad


def used(weights: Tensor) -> set[int]:
    """Experts with a weight above 0 for some task (of some example)."""
    return set(weights.flatten(0, -2).sum(0).nonzero().flatten().tolist())


def examples(rows: int = 64, seed: int = 0) -> Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed))


def make_gate(kind: str, experts: int, k: int) -> Gate:
    """A gate of three tasks."""
    if kind == "softmax_selectors":
        return SoftmaxSelectors(3, experts, k)
    if kind == "per example":
        return DSelectK(3, experts, k, CONFIG.gamma, input_size=5)
    return DSelectK(3, experts, k, CONFIG.gamma, surplus=kind)  # type: ignore[arg-type]


KINDS = ["fold", "random", "penalty", "softmax_selectors", "per example"]
"""Gates that can be held to a budget; the first three are what DSelect-k does with surplus codes."""


class TestBudget:
    """CONFIG cuts at step 50 and chooses at step 120 of 200."""

    @pytest.mark.parametrize("kind", KINDS)
    @settings(deadline=None, max_examples=10)
    @given(data=st.data(), seed=st.integers(0, 2**31), experts=st.integers(2, 13))
    def test_is_kept_by_all_tasks_together(self, kind: str, data: st.DataObject, seed: int, experts: int) -> None:
        budget = data.draw(st.integers(1, experts))
        k = data.draw(st.integers(1, min(3, experts)))
        torch.manual_seed(seed)
        gate = make_gate(kind, experts, k)
        x = examples(seed=seed) if gate.per_example else None
        schedule = learn(gate, steps=40, seed=seed, budget=budget, x=x)
        weights = gate.eval()(examples(500, seed + 1) if gate.per_example else None)
        assert bool(gate.converged().all())
        assert bool(((weights > 0).sum(-1) <= k).all())
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert used(weights) <= set(schedule.experts)
        assert len(schedule.experts) <= budget

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 6])
    def test_is_kept_from_the_cut_on_by_the_experts_that_weigh_most(self, kind: str, budget: int) -> None:
        torch.manual_seed(0)
        gate = make_gate(kind, 7, 2)
        x = examples() if gate.per_example else None
        schedule = GateSchedule(CONFIG, gate, STEPS, budget)
        weights = torch.rand(*gate(x).shape)
        for step in range(1, 50):
            assert not schedule.end_step(step, weights)
        assert schedule.experts == list(range(7))
        assert schedule.budget_step == 50
        assert schedule.end_step(50, weights)
        total = weights.flatten(0, -2).sum(0)
        assert schedule.experts == sorted(total.argsort(descending=True)[:budget].tolist())
        assert used(gate(x)) <= set(schedule.experts)
        torch.testing.assert_close(gate(x).sum(-1), torch.ones(weights.shape[:-1]))
        assert not schedule.done
        assert not schedule.end_step(51, weights)

    @pytest.mark.parametrize("kind", KINDS[:4])
    @pytest.mark.parametrize("budget", [2, 3, 5])
    def test_leaves_a_choice_among_the_experts_that_remain(self, kind: str, budget: int) -> None:
        """Whatever is cheapest among them at the end, not what the cut happened to prefer."""
        torch.manual_seed(0)
        gate = make_gate(kind, 6, 1)
        schedule = GateSchedule(CONFIG, gate, 400, budget)
        keep = torch.zeros(3, 6)
        keep[:, :budget] = 1.0
        keep[:, 0] = 2.0
        schedule.begin_step(100)
        schedule.end_step(100, keep)
        assert schedule.experts == list(range(budget))
        costs = torch.zeros(3, 6)
        costs[:, budget - 1] = -1.0
        optimizer = torch.optim.Adam(gate.parameters(), 0.05)
        for step in range(101, 241):
            schedule.begin_step(step)
            weights = gate()
            optimizer.zero_grad()
            (weights * costs).sum().backward()
            optimizer.step()
            schedule.end_step(step, weights)
        assert schedule.experts == [budget - 1]
        assert gate.selection().experts_used == [budget - 1]

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("budget", [6, 100])
    def test_of_all_experts_changes_nothing(self, kind: str, budget: int) -> None:
        ends = []
        for bound in (None, budget):
            torch.manual_seed(0)
            gate = make_gate(kind, 6, 2)
            x = examples() if gate.per_example else None
            learn(gate, steps=40, budget=bound, x=x)
            ends.append(gate.state_dict())
        assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])

    @pytest.mark.parametrize("steps", [1, 2, 3, 4, 10])
    @pytest.mark.parametrize("kind", KINDS)
    def test_is_kept_however_few_the_steps(self, kind: str, steps: int) -> None:
        torch.manual_seed(0)
        gate = make_gate(kind, 6, 2)
        x = examples() if gate.per_example else None
        schedule = learn(gate, steps=steps, budget=2, x=x)
        assert schedule.done
        assert len(used(gate(x))) <= len(schedule.experts) <= 2


class TestGatesThatNeverConclude:
    @pytest.mark.parametrize("gate", [TopK(2, 4, 2), Softmax(2, 4), SharedBottom(2), TopK(2, 4, 2, input_size=5)])
    def test_are_done_from_the_start(self, gate: Gate) -> None:
        before = {name: value.clone() for name, value in gate.state_dict().items()}
        schedule = GateSchedule(CONFIG, gate, STEPS)
        x = examples()
        for step in range(1, STEPS + 1):
            assert schedule.done
            assert schedule.phase() == "selected"
            schedule.begin_step(step)
            assert not schedule.end_step(step, gate(x))
        assert schedule.binary_at_step is None
        assert schedule.snapped_codes == 0
        assert schedule.experts == list(range(gate.num_experts))
        assert all(torch.equal(value, before[name]) for name, value in gate.state_dict().items())
        assert all(parameter.requires_grad for parameter in gate.parameters())


class TestGatesThatConcludeOtherwise:
    def test_per_example_become_exact_for_every_example_at_the_last_step(self) -> None:
        gate = DSelectK(3, 6, 2, CONFIG.gamma, input_size=5)
        schedule, x = GateSchedule(CONFIG, gate, STEPS), examples(400)
        for step in range(1, 120):
            schedule.begin_step(step)
            assert not schedule.end_step(step, gate(x))
        assert not bool(gate.converged().any())
        assert bool(((gate(x) > 0).sum(-1) > 2).any())
        schedule.begin_step(120)
        assert schedule.end_step(120, gate(x))
        assert bool(gate.converged().all())
        assert schedule.binary_at_step == 120
        selectors = gate.selectors(examples(400, seed=1))
        assert bool(((selectors == 0) | (selectors == 1)).all())
        assert schedule.experts == list(range(6))
        assert not gate.w.requires_grad
        assert gate.g.requires_grad

    @pytest.mark.parametrize("make_", [lambda: SoftmaxSelectors(3, 6, 2), lambda: GumbelSoftmax(3, 6)])
    def test_static_are_final_at_the_last_step_and_keep_what_they_use(self, make_: Callable[[], Gate]) -> None:
        gate = make_()
        schedule = learn(gate)
        assert schedule.done
        assert schedule.binary_at_step == schedule.finalize_step == 120
        assert bool(gate.converged().all())
        assert schedule.experts == gate.selection().experts_used
        assert set(schedule.experts) == used(gate.eval()())
        assert torch.equal(gate.train()(), gate.eval()())

    def test_attentive_ends_at_the_last_step_without_a_choice(self) -> None:
        gate = AttentiveGate(3, 4, 5, 8)
        schedule = GateSchedule(CONFIG, gate, STEPS)
        ends = []
        for step in range(1, STEPS + 1):
            schedule.begin_step(step)
            if schedule.end_step(step, torch.ones(64, 3, 4)):
                ends.append(step)
        assert ends == [120]
        assert schedule.binary_at_step is None
        assert schedule.experts == list(range(4))


class TestResumedTraining:
    """From the state of gate and optimizer alone; only the step says where the schedule stands."""

    @staticmethod
    def ends(kind: str, budget: int | None, stop: int) -> tuple[tuple[Gate, GateSchedule], tuple[Gate, GateSchedule]]:
        """Gate and schedule of a training that ran through, and of one that was resumed after step ``stop``."""

        def made(seed: int) -> tuple[Gate, GateSchedule, torch.optim.Optimizer]:
            torch.manual_seed(seed)
            gate = make_gate(kind, 6, 2)
            return gate, GateSchedule(CONFIG, gate, STEPS, budget), torch.optim.Adam(gate.parameters(), 0.01)

        gate, schedule, optimizer = made(0)
        x = examples() if gate.per_example else None
        go_on(gate, schedule, optimizer, range(1, stop + 1), x=x)
        again, resumed, other = made(1)
        again.load_state_dict({name: value.clone() for name, value in gate.state_dict().items()})
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        go_on(gate, schedule, optimizer, range(stop + 1, STEPS + 1), x=x)
        go_on(again, resumed, other, range(stop + 1, STEPS + 1), x=x)
        return (gate, schedule), (again, resumed)

    @pytest.mark.parametrize("kind", ["fold", "softmax_selectors", "per example"])
    @pytest.mark.parametrize("budget", [None, 3])
    @pytest.mark.parametrize("stop", [60, 100])
    def test_in_mid_ramp_ends_in_the_same_choice_bit_for_bit(self, kind: str, budget: int | None, stop: int) -> None:
        (gate, schedule), (again, resumed) = self.ends(kind, budget, stop)
        assert schedule.done
        assert resumed.done
        assert resumed.snapped_codes == schedule.snapped_codes
        assert all(torch.equal(value, again.state_dict()[name]) for name, value in gate.state_dict().items())
        x = examples() if gate.per_example else None
        assert gate.selection(x=x) == again.selection(x=x)

    @pytest.mark.parametrize("kind", ["fold", "softmax_selectors", "per example"])
    def test_after_the_cut_knows_the_experts_that_are_left(self, kind: str) -> None:
        (_, schedule), (_, resumed) = self.ends(kind, 3, 85)
        assert resumed.experts == schedule.experts
