"""Tests of the problems of the synthetic experiment."""

from __future__ import annotations

import itertools

import pytest
import torch

from benchmarks.papers.mixtures import Effort, Fit, Method, Split, evaluate, train
from benchmarks.papers.synthetic import GROUP_EXPERTS, SCHEDULE, Synthetic, random_jaccard
from ranking.gates import Softmax
from ranking.settings.gate import DSelectKConfig, GateConfig, TopKConfig

ROWS: dict[Split, int] = {"train": 600, "validation": 300, "test": 4_500}


def fixed(weights: torch.Tensor) -> Fit:
    """Return a fit with these weights [tasks, experts]."""
    gate = Softmax(*weights.shape)
    with torch.no_grad():
        gate.bias.copy_(weights.log())
    return Fit(gate, [], None)


def test_losses_of_all_rows_are_those_of_their_chunks() -> None:
    problems = Synthetic(range(2), 16, ROWS)
    weights = torch.full((32, GROUP_EXPERTS), 1 / GROUP_EXPERTS)
    expected = torch.stack([problems.losses(weights, "test", torch.tensor([row])) for row in range(ROWS["test"])])
    assert torch.allclose(evaluate(problems, fixed(weights), "test"), expected.mean(0), rtol=1e-4)


def test_jaccard_of_groups_with_their_own_experts_is_one_and_zero() -> None:
    problems = Synthetic(range(2), 32, ROWS)
    weights = torch.zeros(64, 8)
    for task in range(64):
        group = task % 32 // 16
        weights[task, group * GROUP_EXPERTS : (group + 1) * GROUP_EXPERTS] = 0.25
    assert problems.jaccard(fixed(weights), 1) == (1.0, 0.0)
    weights[32] = torch.tensor([0.5, 0, 0, 0, 0.5, 0, 0, 0])  # Task 0 of the second problem shares 1 of 5.
    related, unrelated = problems.jaccard(fixed(weights), 1)
    assert related == pytest.approx((225 + 15 / 5) / 240)
    assert unrelated == pytest.approx(16 / 5 / 256)
    assert problems.jaccard(fixed(weights), 0) == (1.0, 0.0)


@pytest.mark.parametrize("experts", [4, 8, 16])
def test_random_jaccard_is_the_mean_over_all_pairs_of_choices(experts: int) -> None:
    choices = [set(choice) for choice in itertools.combinations(range(experts), 4)]
    pairs = [(choices[0], other) for other in choices]  # By symmetry, the first choice may be fixed.
    assert random_jaccard(experts) == pytest.approx(sum(len(a & b) / len(a | b) for a, b in pairs) / len(pairs))


def test_similar_tasks_of_each_problem_are_those_of_its_groups() -> None:
    problems = Synthetic(range(2), 32, {"train": 20_000, "validation": 1, "test": 1})
    start = problems.similar_tasks(GROUP_EXPERTS)
    assert start.tolist() == [list(range(task % 32 // 16 * 4, task % 32 // 16 * 4 + 4)) for task in range(64)]


@pytest.mark.parametrize("gate", [DSelectKConfig(k=4), TopKConfig(kind="top_k", k=4)])
def test_gates_start_from_similar_tasks(gate: GateConfig) -> None:
    problems = Synthetic(range(2), 32, {"train": 20_000, "validation": 1, "test": 1})
    method = Method("x", gate, 1e-6, 1e-6, SCHEDULE, similar_tasks=True)
    fit = train(problems, method, Effort(steps=1, batch=8), seed=0)
    start = problems.similar_tasks(4)
    assert [fit.experts(task) for task in range(64)] == [set(row) for row in start.tolist()]


@pytest.mark.parametrize("similar_tasks", [False, True])
def test_training_with_repeated_annealings_ends_with_an_exact_selection(similar_tasks: bool) -> None:
    problems = Synthetic(range(2), 32, ROWS)
    gate = DSelectKConfig(k=4, overlap_weight=0.03)
    method = Method("x", gate, 0.01, 0.1, SCHEDULE, annealings=3, similar_tasks=similar_tasks)
    fit = train(problems, method, Effort(steps=300, batch=128), seed=0)
    assert 1 <= (fit.weights > 0).sum(1).min() <= (fit.weights > 0).sum(1).max() <= 4
    assert evaluate(problems, fit, "validation").mean() < 0.5  # 1 is the error of a constant.
    assert torch.allclose(fit.weights.sum(1), torch.ones(64))
