"""Tests of the problems of the recovery experiment."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from benchmarks.papers.mixtures import Effort, evaluate, train
from benchmarks.papers.recovery import EXPERTS, METHODS, TRUE_EXPERTS, Recovery


def true_weights(problems: Recovery) -> torch.Tensor:
    weights = torch.zeros(problems.num_tasks, EXPERTS)
    for problem, experts in enumerate(problems.true_experts):
        weights[problem, sorted(experts)] = 1 / TRUE_EXPERTS
    return weights


def test_true_experts_have_no_error_on_their_mixture() -> None:
    problems = Recovery(range(3), "mixture", rows=200)
    assert all(len(experts) == TRUE_EXPERTS for experts in problems.true_experts)
    true, rows = true_weights(problems), torch.arange(200)
    others = F.normalize(1 - true, p=1)
    for split in ("train", "validation"):
        assert problems.losses(true, split, rows).max() < 1e-10
        assert problems.losses(others, split, rows).min() > 0.05


def test_label_is_learned_with_the_true_experts() -> None:
    problems, rows = Recovery(range(3), rows=1_000), torch.arange(1_000)
    with torch.no_grad():
        before = problems.losses(true_weights(problems), "validation", rows)
    optimizer = torch.optim.Adam(problems.parameters(), lr=0.3)
    for _ in range(200):
        optimizer.zero_grad()
        problems.losses(true_weights(problems), "train", rows).sum().backward()
        optimizer.step()
    with torch.no_grad():
        after = problems.losses(true_weights(problems), "validation", rows)
    assert (after < 0.3 * before).all()


def test_problem_does_not_depend_on_the_others() -> None:
    alone, among_others = Recovery(range(7, 8), rows=100), Recovery(range(5, 8), rows=100)
    assert alone.true_experts[0] == among_others.true_experts[2]
    weights, rows = torch.rand(3, EXPERTS), torch.arange(100)
    losses = among_others.losses(weights, "train", rows)
    assert torch.allclose(alone.losses(weights[2:], "train", rows)[0], losses[2])
    losses[2].backward()
    assert among_others.unit.grad is not None
    assert not among_others.unit.grad[:2].any()
    assert among_others.unit.grad[2].any()


def test_training_selects_at_most_k_experts_and_lowers_the_loss() -> None:
    for method in METHODS:
        problems, rows = Recovery(range(2), "mixture", rows=500), torch.arange(500)
        untrained = problems.losses(torch.full((2, EXPERTS), 1 / EXPERTS), "validation", rows).mean()
        method = method.__class__(method.name, method.gate, gate_rate=0.03, rate=0.1)
        fit = train(problems, method, Effort(steps=150, batch=128), seed=0, record_every=50)
        assert all(1 <= len(fit.experts(problem)) <= TRUE_EXPERTS for problem in range(2))
        assert [step for step, _ in fit.trajectory] == [50, 100, 150]
        assert evaluate(problems, fit, "validation").mean() < untrained
