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
    gamma=2.0, final_gamma=2e-3, anneal_from=0.25, anneal_until=0.6, hold_alpha_until=0.4, overlap_until=0.5
)


def make_schedule(config: ConvergenceConfig = CONFIG, experts: int = 8, k: int = 2, steps: int = STEPS) -> GateSchedule:
    return GateSchedule(config, DSelectK(3, experts, k, config.gamma), steps)


def train_gate(
    gate: Gate,
    steps: int = STEPS,
    config: ConvergenceConfig = CONFIG,
    seed: int = 0,
    budget: int | None = None,
    x: Tensor | None = None,
) -> GateSchedule:
    """Train a gate alone to minimize the cost of its experts, which is random per task and expert."""
    schedule = GateSchedule(config, gate, steps, budget)
    optimizer = torch.optim.Adam(gate.parameters(), 0.01)
    train_steps(gate, schedule, optimizer, range(1, steps + 1), seed, x)
    return schedule


def train_steps(
    gate: Gate,
    schedule: GateSchedule,
    optimizer: torch.optim.Optimizer,
    steps: range,
    seed: int = 0,
    x: Tensor | None = None,
) -> None:
    """Train a gate for these steps."""
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


def test_gamma_before_annealing_is_constant() -> None:
    schedule = make_schedule()
    assert {schedule.gamma_at(step) for step in range(1, 51)} == {2.0}


def test_gamma_during_annealing_decays_by_a_constant_factor() -> None:
    schedule = make_schedule()
    gammas = [schedule.gamma_at(step) for step in range(50, 121)]
    factors = [after / before for before, after in pairwise(gammas)]
    assert factors == pytest.approx([factors[0]] * len(factors))
    assert factors[0] == pytest.approx(1e-3 ** (1 / 70))


def test_gamma_after_annealing_keeps_its_final_value() -> None:
    schedule = make_schedule()
    assert schedule.finalize_step == 120
    assert schedule.gamma_at(120) == pytest.approx(2e-3)
    assert schedule.gamma_at(STEPS) == pytest.approx(2e-3)


@given(steps=st.integers(1, 500), start=st.floats(0, 0.5), length=st.floats(0.01, 0.49))
def test_gamma_for_any_schedule_is_monotonic_and_within_its_bounds(steps: int, start: float, length: float) -> None:
    config = ConvergenceConfig(
        gamma=3.0, final_gamma=0.01, anneal_from=start, anneal_until=start + length, budget_at=0.0
    )
    schedule = make_schedule(config, steps=steps)
    gammas = [schedule.gamma_at(step) for step in range(1, steps + 1)]
    assert all(after <= before for before, after in pairwise(gammas))
    assert all(0.0099 < gamma <= 3.0 for gamma in gammas)


def test_begin_step_sets_gamma_of_the_gate() -> None:
    gate = DSelectK(1, 4, 2, CONFIG.gamma)
    schedule = GateSchedule(CONFIG, gate, STEPS)
    for step in (1, 60, 100):
        schedule.begin_step(step)
        assert float(gate.gamma) == pytest.approx(schedule.gamma_at(step))


def test_gamma_at_a_fraction_of_the_steps_does_not_depend_on_their_number() -> None:
    short, long = make_schedule(steps=100), make_schedule(steps=1000)
    assert [short.gamma_at(s) for s in (10, 40, 60)] == pytest.approx([long.gamma_at(s) for s in (100, 400, 600)])


def alpha_gradient(step: int) -> Tensor | None:
    gate = DSelectK(2, 4, 2, CONFIG.gamma)
    schedule = GateSchedule(CONFIG, gate, STEPS)
    schedule.begin_step(step)
    (gate() * torch.arange(4)).sum().backward()
    return gate.alpha.grad


@pytest.mark.parametrize("step", [1, 40, 80])
def test_alpha_while_frozen_has_no_gradient(step: int) -> None:
    assert alpha_gradient(step) is None


@pytest.mark.parametrize("step", [81, 120, STEPS])
def test_alpha_after_the_freeze_has_a_gradient(step: int) -> None:
    gradient = alpha_gradient(step)
    assert gradient is not None
    assert bool((gradient != 0).any())


@pytest.mark.parametrize("hold", [0.0, 1.0])
def test_alpha_is_uniform_only_if_frozen_until_the_end(hold: float) -> None:
    gate = DSelectK(2, 8, 3, CONFIG.gamma)
    train_gate(gate, config=CONFIG.model_copy(update={"hold_alpha_until": hold}))
    alike = torch.equal(gate.alpha, torch.zeros(2, 3))
    assert alike == (hold == 1.0)


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 100])
def test_end_step_finalizes_exactly_once_for_any_number_of_steps(steps: int) -> None:
    schedule = make_schedule(steps=steps)
    train_and_resume = []
    for step in range(1, steps + 1):
        schedule.begin_step(step)
        assert schedule.phase() == ("selected" if train_and_resume else "selecting")
        if schedule.end_step(step, torch.ones(3, 8)):
            train_and_resume.append(step)
    assert train_and_resume == [schedule.finalize_step]
    assert schedule.done
    assert schedule.phase() == "selected"


@pytest.mark.parametrize("experts", [1, 3, 8, 12])
@pytest.mark.parametrize("seed", range(2))
def test_finalized_gate_is_exactly_binary(experts: int, seed: int) -> None:
    torch.manual_seed(seed)
    gate = DSelectK(2, experts, min(2, experts), CONFIG.gamma)
    schedule = train_gate(gate, steps=80, seed=seed)
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


def test_finalized_gate_after_enough_steps_needs_no_snapping() -> None:
    for seed in range(2):
        torch.manual_seed(seed)
        schedule = train_gate(DSelectK(2, 8, 2, CONFIG.gamma), seed=seed)
        assert schedule.snapped_codes == 0
        assert schedule.binary_at_step is not None
        assert schedule.binary_at_step <= schedule.finalize_step


def test_finalized_gate_selects_experts_with_below_average_cost() -> None:
    costs = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    gate = DSelectK(3, 8, 1, CONFIG.gamma)
    train_gate(gate, steps=400)
    chosen = [next(iter(experts)) for experts in gate.selection().tasks.values()]
    mean = costs.mean(1)
    assert all(float(costs[task, expert]) < float(mean[task]) for task, expert in enumerate(chosen))


def test_finalizing_snaps_nonbinary_codes_and_counts_their_selectors() -> None:
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


def test_binary_at_step_is_the_first_step_of_lasting_convergence() -> None:
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


def test_finalized_selection_does_not_change_in_later_steps() -> None:
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


def used_experts(weights: Tensor) -> set[int]:
    """Return the experts with a positive weight for some task (of some example)."""
    return set(weights.flatten(0, -2).sum(0).nonzero().flatten().tolist())


def draw_examples(rows: int = 64, seed: int = 0) -> Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed))


def make_gate(kind: str, experts: int, k: int) -> Gate:
    """Build a gate of three tasks."""
    if kind == "softmax_selectors":
        return SoftmaxSelectors(3, experts, k)
    if kind == "per example":
        return DSelectK(3, experts, k, CONFIG.gamma, input_size=5)
    return DSelectK(3, experts, k, CONFIG.gamma, surplus=kind)  # type: ignore[arg-type]


KINDS = ["fold", "random", "penalty", "softmax_selectors", "per example"]
"""Gates that support a budget; the first three are the ``surplus`` settings of DSelect-k."""


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(data=st.data(), seed=st.integers(0, 2**31), experts=st.integers(2, 13))
def test_budget_limits_the_experts_over_all_tasks(kind: str, data: st.DataObject, seed: int, experts: int) -> None:
    budget = data.draw(st.integers(1, experts))
    k = data.draw(st.integers(1, min(3, experts)))
    torch.manual_seed(seed)
    gate = make_gate(kind, experts, k)
    x = draw_examples(seed=seed) if gate.per_example else None
    schedule = train_gate(gate, steps=40, seed=seed, budget=budget, x=x)
    weights = gate.eval()(draw_examples(500, seed + 1) if gate.per_example else None)
    assert bool(gate.converged().all())
    assert bool(((weights > 0).sum(-1) <= k).all())
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert used_experts(weights) <= set(schedule.experts)
    assert len(schedule.experts) <= budget


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [1, 3, 6])
def test_budget_keeps_the_experts_with_the_largest_total_weight(kind: str, budget: int) -> None:
    torch.manual_seed(0)
    gate = make_gate(kind, 7, 2)
    x = draw_examples() if gate.per_example else None
    schedule = GateSchedule(CONFIG, gate, STEPS, budget)
    weights = torch.rand(*gate(x).shape)
    for step in range(1, 50):
        assert not schedule.end_step(step, weights)
    assert schedule.experts == list(range(7))
    assert schedule.budget_step == 50
    assert schedule.end_step(50, weights)
    total = weights.flatten(0, -2).sum(0)
    assert schedule.experts == sorted(total.argsort(descending=True)[:budget].tolist())
    assert used_experts(gate(x)) <= set(schedule.experts)
    torch.testing.assert_close(gate(x).sum(-1), torch.ones(weights.shape[:-1]))
    assert not schedule.done
    assert not schedule.end_step(51, weights)


@pytest.mark.parametrize("kind", KINDS[:4])
@pytest.mark.parametrize("budget", [2, 5])
def test_budget_leaves_the_selection_open_among_the_remaining_experts(kind: str, budget: int) -> None:
    """The cheapest expert at the end is selected, not the one with the largest weight at the budget step."""
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
def test_budget_of_all_experts_has_no_effect(kind: str, budget: int) -> None:
    train_and_resume = []
    for bound in (None, budget):
        torch.manual_seed(0)
        gate = make_gate(kind, 6, 2)
        x = draw_examples() if gate.per_example else None
        train_gate(gate, steps=40, budget=bound, x=x)
        train_and_resume.append(gate.state_dict())
    assert all(torch.equal(train_and_resume[0][name], train_and_resume[1][name]) for name in train_and_resume[0])


@pytest.mark.parametrize("steps", [1, 2, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_budget_holds_for_very_few_steps(kind: str, steps: int) -> None:
    torch.manual_seed(0)
    gate = make_gate(kind, 6, 2)
    x = draw_examples() if gate.per_example else None
    schedule = train_gate(gate, steps=steps, budget=2, x=x)
    assert schedule.done
    assert len(used_experts(gate(x))) <= len(schedule.experts) <= 2


@pytest.mark.parametrize("gate", [TopK(2, 4, 2), Softmax(2, 4), SharedBottom(2), TopK(2, 4, 2, input_size=5)])
def test_gate_without_final_selection_is_done_from_the_start(gate: Gate) -> None:
    before = {name: value.clone() for name, value in gate.state_dict().items()}
    schedule = GateSchedule(CONFIG, gate, STEPS)
    x = draw_examples()
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


def test_per_example_gate_is_exact_for_every_example_once_finalized() -> None:
    gate = DSelectK(3, 6, 2, CONFIG.gamma, input_size=5)
    schedule, x = GateSchedule(CONFIG, gate, STEPS), draw_examples(400)
    for step in range(1, 120):
        schedule.begin_step(step)
        assert not schedule.end_step(step, gate(x))
    assert not bool(gate.converged().any())
    assert bool(((gate(x) > 0).sum(-1) > 2).any())
    schedule.begin_step(120)
    assert schedule.end_step(120, gate(x))
    assert bool(gate.converged().all())
    assert schedule.binary_at_step == 120
    selectors = gate.selectors(draw_examples(400, seed=1))
    assert bool(((selectors == 0) | (selectors == 1)).all())
    assert schedule.experts == list(range(6))
    assert not gate.w.requires_grad
    assert gate.g.requires_grad


@pytest.mark.parametrize("make_static_gate", [lambda: SoftmaxSelectors(3, 6, 2), lambda: GumbelSoftmax(3, 6)])
def test_static_gate_of_other_kinds_keeps_its_used_experts_once_finalized(make_static_gate: Callable[[], Gate]) -> None:
    gate = make_static_gate()
    schedule = train_gate(gate)
    assert schedule.done
    assert schedule.binary_at_step == schedule.finalize_step == 120
    assert bool(gate.converged().all())
    assert schedule.experts == gate.selection().experts_used
    assert set(schedule.experts) == used_experts(gate.eval()())
    assert torch.equal(gate.train()(), gate.eval()())


def test_attentive_gate_is_finalized_without_a_selection() -> None:
    gate = AttentiveGate(3, 4, 5, 8)
    schedule = GateSchedule(CONFIG, gate, STEPS)
    train_and_resume = []
    for step in range(1, STEPS + 1):
        schedule.begin_step(step)
        if schedule.end_step(step, torch.ones(64, 3, 4)):
            train_and_resume.append(step)
    assert train_and_resume == [120]
    assert schedule.binary_at_step is None
    assert schedule.experts == list(range(4))


def train_and_resume(
    kind: str, budget: int | None, stop: int
) -> tuple[tuple[Gate, GateSchedule], tuple[Gate, GateSchedule]]:
    """Gate and schedule of a training that ran through, and of one that was resumed after step ``stop``."""

    def made(seed: int) -> tuple[Gate, GateSchedule, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        gate = make_gate(kind, 6, 2)
        return gate, GateSchedule(CONFIG, gate, STEPS, budget), torch.optim.Adam(gate.parameters(), 0.01)

    gate, schedule, optimizer = made(0)
    x = draw_examples() if gate.per_example else None
    train_steps(gate, schedule, optimizer, range(1, stop + 1), x=x)
    again, resumed, other = made(1)
    again.load_state_dict({name: value.clone() for name, value in gate.state_dict().items()})
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train_steps(gate, schedule, optimizer, range(stop + 1, STEPS + 1), x=x)
    train_steps(again, resumed, other, range(stop + 1, STEPS + 1), x=x)
    return (gate, schedule), (again, resumed)


@pytest.mark.parametrize("kind", ["fold", "softmax_selectors", "per example"])
@pytest.mark.parametrize(
    ("budget", "stop"), [pytest.param(None, 100, marks=pytest.mark.nightly), (3, 40), (3, 85)]
)  # the budget applies at step 50
def test_resumed_schedule_ends_in_the_same_selection_bit_for_bit(kind: str, budget: int | None, stop: int) -> None:
    (gate, schedule), (again, resumed) = train_and_resume(kind, budget, stop)
    assert schedule.done
    assert resumed.done
    assert resumed.snapped_codes == schedule.snapped_codes
    assert resumed.experts == schedule.experts
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in gate.state_dict().items())
    x = draw_examples() if gate.per_example else None
    assert gate.selection(x=x) == again.selection(x=x)
