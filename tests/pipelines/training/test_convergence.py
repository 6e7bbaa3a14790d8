from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipelines.config import ConvergenceConfig
from pipelines.training.convergence import Convergence
from ranking.gates import DSelectK

STEPS = 200
CONFIG = ConvergenceConfig(
    gamma=2.0,
    final_gamma=2e-3,
    anneal_from=0.25,
    anneal_until=0.6,
    hold_alpha_until=0.4,
    overlap_weight=0.1,
    overlap_until=0.5,
)


def make(config: ConvergenceConfig = CONFIG, experts: int = 8, k: int = 2, steps: int = STEPS) -> Convergence:
    return Convergence(config, DSelectK(3, experts, k, config.gamma), steps)


def learn(gate: DSelectK, steps: int = STEPS, config: ConvergenceConfig = CONFIG, seed: int = 0) -> Convergence:
    """Trains a gate alone: each expert costs something, another sum for each task."""
    costs = torch.randn(gate.num_tasks, gate.num_experts, generator=torch.Generator().manual_seed(seed))
    convergence = Convergence(config, gate, steps)
    optimiser = torch.optim.Adam(gate.parameters(), 0.01)
    for step in range(1, steps + 1):
        convergence.before(step)
        loss = (gate() * costs).sum() + convergence.penalty(step)
        optimiser.zero_grad()
        if loss.requires_grad:
            loss.backward()
            optimiser.step()
        convergence.after(step)
    return convergence


class TestGamma:
    def test_stays_until_the_ramp(self) -> None:
        convergence = make()
        assert {convergence.gamma_at(step) for step in range(1, 51)} == {2.0}

    def test_falls_by_the_same_factor_at_every_step_of_the_ramp(self) -> None:
        convergence = make()
        ramp = [convergence.gamma_at(step) for step in range(50, 121)]
        factors = [after / before for before, after in pairwise(ramp)]
        assert factors == pytest.approx([factors[0]] * len(factors))
        assert factors[0] == pytest.approx(1e-3 ** (1 / 70))

    def test_reaches_its_final_value_at_the_end_of_the_ramp_and_keeps_it(self) -> None:
        convergence = make()
        assert convergence.last_step == 120
        assert convergence.gamma_at(120) == pytest.approx(2e-3)
        assert convergence.gamma_at(STEPS) == pytest.approx(2e-3)

    @settings(deadline=None, max_examples=100)
    @given(steps=st.integers(1, 500), start=st.floats(0, 0.5), length=st.floats(0.01, 0.49))
    def test_never_rises_and_never_leaves_its_bounds(self, steps: int, start: float, length: float) -> None:
        config = ConvergenceConfig(gamma=3.0, final_gamma=0.01, anneal_from=start, anneal_until=start + length)
        convergence = make(config, steps=steps)
        gammas = [convergence.gamma_at(step) for step in range(1, steps + 1)]
        assert all(after <= before for before, after in pairwise(gammas))
        assert all(0.0099 < gamma <= 3.0 for gamma in gammas)

    def test_is_set_on_the_gate_before_each_step(self) -> None:
        gate = DSelectK(1, 4, 2, CONFIG.gamma)
        convergence = Convergence(CONFIG, gate, STEPS)
        for step in (1, 60, 100):
            convergence.before(step)
            assert float(gate.gamma) == pytest.approx(convergence.gamma_at(step))

    def test_means_the_same_for_every_number_of_steps(self) -> None:
        short, long = make(steps=100), make(steps=1000)
        assert [short.gamma_at(s) for s in (10, 40, 60)] == pytest.approx([long.gamma_at(s) for s in (100, 400, 600)])


class TestAlpha:
    def gradient(self, step: int) -> Tensor | None:
        gate = DSelectK(2, 4, 2, CONFIG.gamma)
        convergence = Convergence(CONFIG, gate, STEPS)
        convergence.before(step)
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


class TestOverlapPenalty:
    def test_fades_linearly_to_zero_and_stays_there(self) -> None:
        convergence = make()
        penalties = [float(torch.as_tensor(convergence.penalty(step)).detach()) for step in range(1, 111)]
        overlap = penalties[49] / 0.05  # at step 50 half of the weight 0.1 is left
        assert overlap > 0
        expected = [0.1 * max(0.0, 1 - step / 100) * overlap for step in range(1, 111)]
        assert penalties == pytest.approx(expected, abs=1e-7)
        assert penalties[99:] == [0.0] * 11

    def test_is_nothing_once_the_choice_is_final(self) -> None:
        config = CONFIG.model_copy(update={"overlap_until": 1.0})
        convergence = learn(DSelectK(2, 8, 2, CONFIG.gamma), config=config)
        assert convergence.penalty(130) == 0.0

    def test_pushes_selectors_that_agree_apart(self) -> None:
        gate = DSelectK(1, 4, 2, 1.0)
        with torch.no_grad():
            gate.z.copy_(torch.tensor([[[0.2, 0.1], [0.15, 0.12]]]))
        before = gate.overlap().detach()
        convergence = Convergence(CONFIG, gate, STEPS)
        torch.as_tensor(convergence.penalty(1)).backward()
        with torch.no_grad():
            assert gate.z.grad is not None
            gate.z -= 0.1 * gate.z.grad
        assert gate.overlap() < before

    def test_leaves_a_single_selector_alone(self) -> None:
        assert torch.as_tensor(make(k=1).penalty(1)).abs() < 1e-6


class TestEndOfTheSelection:
    @pytest.mark.parametrize("steps", [1, 2, 3, 10, 100])
    def test_comes_exactly_once_whatever_the_number_of_steps(self, steps: int) -> None:
        convergence = make(steps=steps)
        ends = []
        for step in range(1, steps + 1):
            convergence.before(step)
            assert convergence.phase() == ("selected" if ends else "selecting")
            if convergence.after(step):
                ends.append(step)
        assert ends == [convergence.last_step]
        assert convergence.done
        assert convergence.phase() == "selected"

    @pytest.mark.parametrize("experts", [1, 2, 3, 5, 8, 12])
    @pytest.mark.parametrize("seed", range(5))
    def test_finds_every_gate_exactly_binary(self, experts: int, seed: int) -> None:
        torch.manual_seed(seed)
        gate = DSelectK(2, experts, min(2, experts), CONFIG.gamma)
        convergence = learn(gate, steps=80, seed=seed)
        assert convergence.done
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
            convergence = learn(DSelectK(2, 8, 2, CONFIG.gamma), seed=seed)
            assert convergence.snapped_codes == 0
            assert convergence.binary_at_step is not None
            assert convergence.binary_at_step <= convergence.last_step

    def test_chooses_experts_that_cost_less_than_the_average(self) -> None:
        costs = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
        gate = DSelectK(3, 8, 1, CONFIG.gamma)
        learn(gate, steps=400)
        chosen = [next(iter(experts)) for experts in gate.selection().tasks.values()]
        mean = costs.mean(1)
        assert all(float(costs[task, expert]) < float(mean[task]) for task, expert in enumerate(chosen))

    def test_snaps_codes_that_are_not_binary_yet_and_counts_their_selectors(self) -> None:
        gate = DSelectK(2, 8, 2, CONFIG.gamma)
        convergence = Convergence(CONFIG, gate, STEPS)
        with torch.no_grad():
            gate.z.fill_(1.0)
            gate.z[0, 1, 2] = 1e-6  # one code of one selector
        convergence.before(convergence.last_step)
        assert convergence.after(convergence.last_step)
        assert convergence.snapped_codes == 1
        assert bool(gate.converged().all())
        assert convergence.binary_at_step == convergence.last_step

    def test_notes_when_the_codes_became_binary_for_good(self) -> None:
        gate = DSelectK(1, 4, 1, CONFIG.gamma)
        convergence = Convergence(CONFIG, gate, STEPS)

        def step(number: int, z: float) -> None:
            with torch.no_grad():
                gate.z.fill_(z)
            convergence.before(number)
            convergence.after(number)

        step(1, 5.0)
        assert convergence.binary_at_step == 1
        step(2, 0.1)
        assert convergence.binary_at_step is None
        step(3, -5.0)
        step(4, -5.0)
        assert convergence.binary_at_step == 3

    def test_leaves_the_choice_as_it_is_for_the_rest_of_the_training(self) -> None:
        gate = DSelectK(3, 8, 2, CONFIG.gamma)
        choices = []
        costs = torch.randn(3, 8)
        convergence = Convergence(CONFIG, gate, STEPS)
        optimiser = torch.optim.Adam(gate.parameters(), 0.01)
        for number in range(1, STEPS + 1):
            convergence.before(number)
            optimiser.zero_grad()
            (gate() * costs).sum().backward()
            optimiser.step()
            convergence.after(number)
            if convergence.done:
                choices.append((gate.codes().tolist(), float(gate.gamma)))
        assert len(choices) == STEPS - 120 + 1
        assert all(choice == choices[0] for choice in choices)
        assert not gate.z.requires_grad
