"""Pairwise losses against a loop over all pairs, with masked labels, sample weights and large groups."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from ranking.model.ranking_loss import MAX_GROUP_ROWS, pairs_within, pairwise_losses
from ranking.schema import Task

TASKS = [
    Task(name="click", kind="binary"),
    Task(name="watch", kind="regression", transform="log1p"),
    Task(name="like", kind="binary"),
]
NAN = math.nan
GROUPS = st.lists(st.integers(0, 4), min_size=1, max_size=14)


def loop(outputs: Tensor, labels: Tensor, groups: list[int], weights: list[float]) -> list[float]:
    """Compute the loss of each task with a loop over the pairs of each group."""
    losses = []
    for t, task in enumerate(TASKS):
        label, output = labels[:, t].tolist(), outputs[:, t].tolist()
        total = sum(w for w, y in zip(weights, label, strict=True) if not math.isnan(y))
        loss = 0.0
        for group in set(groups) - {0} if task.kind == "binary" else ():
            rows = [i for i, g in enumerate(groups) if g == group]
            pairs = [(i, j) for i in rows for j in rows if label[i] == 1 and label[j] == 0]
            weight = sum(weights[i] * weights[j] for i, j in pairs)
            if weight:
                mean = sum(weights[i] * weights[j] * math.log1p(math.exp(output[j] - output[i])) for i, j in pairs)
                loss += mean / weight * sum(weights[i] for i in rows if not math.isnan(label[i]))
        losses.append(loss / total if total else 0.0)
    return losses


def draw(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw outputs, and labels of which a fifth is masked."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (rows, 3), generator=random).double()
    labels[torch.rand(rows, 3, generator=random) < 0.2] = NAN
    return 3 * torch.randn(rows, 3, generator=random, dtype=torch.float64), labels


@given(GROUPS, st.integers(0, 1000))
def test_pairwise_losses_equal_a_loop_over_the_pairs(groups: list[int], seed: int) -> None:
    outputs, labels = draw(len(groups), seed)
    weights = torch.rand(len(groups), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    losses = pairwise_losses(outputs, labels, torch.tensor(groups), TASKS, weights)
    assert losses.tolist() == pytest.approx(loop(outputs, labels, groups, weights.tolist()), abs=1e-9)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=10), st.integers(0, 1000))
def test_pairwise_losses_with_integer_weights_equal_those_of_repeated_rows(
    rows: list[tuple[int, int]], seed: int
) -> None:
    groups, repeats = (torch.tensor(column) for column in zip(*rows, strict=True))
    outputs, labels = draw(len(rows), seed)
    weighted = pairwise_losses(outputs, labels, groups, TASKS, repeats.double())
    repeated = [tensor.repeat_interleave(repeats, 0) for tensor in (outputs, labels, groups)]
    once = torch.ones(int(repeats.sum()), dtype=torch.float64)
    torch.testing.assert_close(weighted, pairwise_losses(*repeated, TASKS, once))


def test_pairwise_losses_fall_when_the_positive_row_rises_and_ignore_a_shift_of_the_group() -> None:
    groups, labels = torch.tensor([7, 7, 8]), torch.tensor([[1.0], [0.0], [1.0]])
    task, weights = TASKS[:1], torch.ones(3)
    outputs = torch.tensor([[0.0], [0.0], [0.0]], requires_grad=True)
    loss = pairwise_losses(outputs, labels, groups, task, weights)
    assert loss.item() == pytest.approx(2 / 3 * math.log(2))
    loss.sum().backward()
    assert outputs.grad is not None
    assert outputs.grad[0] < 0 < outputs.grad[1]
    assert outputs.grad[2] == 0
    shifted = pairwise_losses(torch.tensor([[5.0], [5.0], [-3.0]]), labels, groups, task, weights)
    assert shifted.item() == pytest.approx(loss.item())


@pytest.mark.parametrize("size", [1e3, 1e6])
def test_pairwise_losses_of_large_outputs_are_finite(size: float) -> None:
    outputs = torch.tensor([[size, 0, -size], [-size, 0, size]], requires_grad=True)
    labels = torch.tensor([[0.0, NAN, NAN], [1.0, NAN, 1.0]])
    losses = pairwise_losses(outputs, labels, torch.tensor([1, 1]), TASKS, torch.ones(2))
    assert losses.tolist() == [2 * size, 0, 0]
    losses.sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


@given(GROUPS)
def test_pairs_are_all_pairs_of_rows_of_a_known_group(groups: list[int]) -> None:
    first, second, group = pairs_within(torch.tensor(groups))
    pairs = Counter(frozenset(pair) for pair in zip(first.tolist(), second.tolist(), strict=True))
    rows = range(len(groups))
    assert pairs == Counter(frozenset((i, j)) for i in rows for j in range(i) if groups[i] == groups[j] != 0)
    for i in rows:
        for j in rows:
            assert (group[i] == group[j]) == (i == j or groups[i] == groups[j] != 0)


@pytest.mark.parametrize("rows", [MAX_GROUP_ROWS, MAX_GROUP_ROWS + 1, 2 * MAX_GROUP_ROWS + 5])
def test_large_group_is_compared_in_parts(rows: int) -> None:
    first, second, group = pairs_within(torch.full((rows,), 3))
    parts = torch.bincount(torch.unique(group, return_inverse=True)[1])
    full, rest = divmod(rows, MAX_GROUP_ROWS)
    assert parts.tolist() == [MAX_GROUP_ROWS] * full + [rest] * (rest > 0)
    assert len(first) == sum(n * (n - 1) // 2 for n in parts.tolist())
    assert torch.equal(group[first], group[second])


def test_empty_batch_has_no_loss() -> None:
    empty = torch.empty(0, 3)
    assert pairwise_losses(empty, empty, torch.empty(0, dtype=torch.int64), TASKS, torch.empty(0)).tolist() == [0, 0, 0]
