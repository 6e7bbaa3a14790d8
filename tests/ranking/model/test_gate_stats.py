"""Gate statistics, compared with plain loops over rows and with hand calculations."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ranking.model.gate_stats import GateStatistics, entropy, mutual_information
from ranking.schema import Task

TASKS = [
    Task(name="click", kind="binary", group="attention"),
    Task(name="like", kind="binary", group="engagement"),
    Task(name="share", kind="binary", group="engagement"),
    Task(name="watch", kind="regression", group="attention"),
    Task(name="rating", kind="regression"),
]
EXPERTS, ROWS = 4, 30


def sparse_distributions(*shape: int) -> Tensor:
    """Return random distributions in which about half of the weights are 0."""
    weights = torch.rand(*shape, dtype=torch.float64) * (torch.rand(*shape) < 0.5)
    weights[..., 0] += (weights.sum(-1) == 0).double()
    return weights / weights.sum(-1, keepdim=True)


def random_labels(rows: int, tasks: int) -> Tensor:
    """Return random labels 0 or 1, of which about a fifth are unknown (NaN)."""
    return torch.where(torch.rand(rows, tasks) < 0.2, torch.nan, torch.randint(2, (rows, tasks)).float())


def entropy_in_bits(p: Sequence[float]) -> float:
    return -sum(x * math.log2(x) for x in p if x > 0)


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def statistics_in_loops(
    tasks: Sequence[Task], weights: list[list[list[float]]], labels: list[list[float]]
) -> dict[str, Any]:
    """Compute all measures of the weights [rows][tasks][experts] with plain loops."""
    rows, experts = range(len(weights)), range(len(weights[0][0]))
    used = [[{e for e in experts if w[e] > 0} for w in row] for row in weights]

    def jaccard(i: int, j: int) -> float:
        return sum(len(used[r][i] & used[r][j]) / len(used[r][i] | used[r][j]) for r in rows) / len(rows)

    pairs = [(i, j) for i in range(len(tasks)) for j in range(i)]
    groups = [task.group for task in tasks]
    overall: dict[str, Any] = {
        "experts_used": len({e for row in used for task in row for e in task}),
        "experts_a_row": mean([len(set().union(*row)) for row in used]),
        "jaccard": {
            "all": mean([jaccard(i, j) for i, j in pairs]),
            "within_groups": mean([jaccard(i, j) for i, j in pairs if groups[i] and groups[i] == groups[j]]),
            "across_groups": mean(
                [jaccard(i, j) for i, j in pairs if groups[i] and groups[j] and groups[i] != groups[j]]
            ),
        },
    }
    by_task: dict[str, dict[str, Any]] = {
        name: {} for name in ("experts_a_task", "sparsity", "utilisation", "mutual_information", "table")
    }
    by_class: dict[str, Any] = {}
    for t, task in enumerate(tasks):
        average = [sum(weights[r][t][e] for r in rows) / len(rows) for e in experts]
        by_task["experts_a_task"][task.name] = mean([len(used[r][t]) for r in rows])
        by_task["sparsity"][task.name] = mean([entropy_in_bits(weights[r][t]) for r in rows])
        by_task["utilisation"][task.name] = entropy_in_bits(average)
        by_task["table"][task.name] = {str(e): w for e, w in enumerate(average) if w > 0}
        by_task["mutual_information"][task.name] = None
        if task.kind == "binary":
            counts = [[sum(weights[r][t][e] for r in rows if labels[r][t] == c) for e in experts] for c in (0, 1)]
            total = sum(map(sum, counts))
            if total:
                joint = [count / total for row in counts for count in row]
                experts_share = [(counts[0][e] + counts[1][e]) / total for e in experts]
                by_task["mutual_information"][task.name] = (
                    entropy_in_bits(experts_share)
                    + entropy_in_bits([sum(row) / total for row in counts])
                    - entropy_in_bits(joint)
                )
            by_class[task.name] = {
                str(c): {str(e): w / sum(row) for e, w in enumerate(row) if w > 0}
                for c, row in enumerate(counts)
                if sum(row)
            }
    return overall | by_task | {"table_by_class": by_class}


def assert_nested_equal(actual: Any, expected: Any, path: str = "") -> None:
    """Check that nested dictionaries are equal up to rounding."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), path
        for key in expected:
            assert_nested_equal(actual[key], expected[key], f"{path}.{key}")
    elif expected is None:
        assert actual is None, path
    else:
        assert actual == pytest.approx(expected, rel=1e-9, abs=1e-12), path


def compute_statistics(
    weights: Tensor, labels: Tensor, tasks: Sequence[Task] = TASKS, batch: int = ROWS
) -> dict[str, Any]:
    statistics = GateStatistics(tasks, weights.shape[-1])
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        statistics.add(weights[part] if weights.dim() == 3 else weights, labels[part])
    return statistics.to_json()


# Comparison with loops.


@pytest.mark.parametrize("batch", [1, 7, ROWS])
def test_gate_statistics_of_per_example_gate_equal_loops(batch: int) -> None:
    weights, labels = sparse_distributions(ROWS, len(TASKS), EXPERTS), random_labels(ROWS, len(TASKS))
    assert_nested_equal(
        compute_statistics(weights, labels, batch=batch), statistics_in_loops(TASKS, weights.tolist(), labels.tolist())
    )


@pytest.mark.parametrize("batch", [1, 7, ROWS])
def test_gate_statistics_of_static_gate_equal_those_of_identical_rows(batch: int) -> None:
    weights, labels = sparse_distributions(len(TASKS), EXPERTS), random_labels(ROWS, len(TASKS))
    expanded = weights.expand(ROWS, *weights.shape)
    expected = statistics_in_loops(TASKS, expanded.tolist(), labels.tolist())
    for form in (weights, expanded, expanded.clone()):
        assert_nested_equal(compute_statistics(form, labels, batch=batch), expected)


def test_gate_statistics_accept_float32_weights() -> None:
    weights, labels = sparse_distributions(ROWS, len(TASKS), EXPERTS), random_labels(ROWS, len(TASKS))
    rounded, exact = compute_statistics(weights.float(), labels), compute_statistics(weights, labels)
    assert rounded["experts_a_row"] == exact["experts_a_row"]
    assert rounded["mutual_information"]["click"] == pytest.approx(exact["mutual_information"]["click"], abs=1e-5)


# Hand calculations.


def test_entropy_is_in_bits() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.25] * 4], dtype=torch.float64)
    assert entropy(p).tolist() == pytest.approx([1.0, 0.0, 2.0])


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[5.0, 0.0], [0.0, 5.0]], 1.0),  # The expert determines the class.
        ([[2.0, 6.0], [1.0, 3.0]], 0.0),  # Expert and class are independent.
        ([[8.0, 0.0], [0.0, 0.0]], 0.0),
        ([[1.0, 1.0], [2.0, 0.0]], 0.311278),  # H(¾, ¼) + 1 − H(¼, ¼, ½)
    ],
)
def test_mutual_information_matches_hand_calculation(counts: list[list[float]], expected: float) -> None:
    information = mutual_information(torch.tensor(counts, dtype=torch.float64))
    assert information == pytest.approx(expected, abs=1e-6)
    assert information >= 0.0


def test_gate_statistics_of_static_gate_have_zero_mutual_information() -> None:
    information = compute_statistics(sparse_distributions(len(TASKS), EXPERTS), random_labels(ROWS, len(TASKS)))[
        "mutual_information"
    ]
    assert [information[name] for name in ("click", "like", "share")] == pytest.approx([0.0] * 3, abs=1e-9)


def test_gate_statistics_jaccard_index_matches_hand_calculation() -> None:
    tasks = [task for task in TASKS if task.name != "watch"]
    weights = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0], [0.0, 0.5, 0.0, 0.5], [0.5, 0.5, 0.0, 0.0]])
    statistics = compute_statistics(weights, random_labels(5, 4), tasks)["jaccard"]
    assert statistics["within_groups"] == pytest.approx(1 / 3)  # like {1, 2} and share {1, 3}
    assert statistics["across_groups"] == pytest.approx(1 / 3)  # click {0, 1} with each of them
    assert statistics["all"] == pytest.approx((5 * (1 / 3) + 1) / 6), "rating has no group and the experts of click"


def test_gate_statistics_tasks_without_group_belong_to_no_group_pair() -> None:
    tasks = [Task(name=name, kind="binary") for name in ("a", "b")]
    statistics = compute_statistics(torch.eye(2), random_labels(5, 2), tasks)["jaccard"]
    assert statistics == {"all": 0.0, "within_groups": None, "across_groups": None}


def test_gate_statistics_undefined_measures_are_none() -> None:
    tasks = TASKS[:1]
    statistics = compute_statistics(torch.ones(1, EXPERTS) / EXPERTS, torch.full((3, 1), torch.nan), tasks)
    assert statistics["jaccard"] == {"all": None, "within_groups": None, "across_groups": None}
    assert statistics["mutual_information"] == {"click": None}
    assert statistics["table_by_class"] == {"click": {}}


def test_gate_statistics_class_without_rows_is_left_out() -> None:
    statistics = compute_statistics(torch.ones(1, 2) / 2, torch.tensor([[1.0], [torch.nan], [1.0]]), TASKS[:1])
    assert statistics["table_by_class"] == {"click": {"1": {"0": 0.5, "1": 0.5}}}


def test_gate_statistics_unlabeled_row_counts_in_table_but_not_by_class() -> None:
    weights = torch.zeros(2, 1, 3)
    weights[0, 0, 0] = weights[1, 0, 2] = 1.0
    statistics = compute_statistics(weights, torch.tensor([[1.0], [torch.nan]]), TASKS[:1])
    assert statistics["table"] == {"click": {"0": 0.5, "2": 0.5}}
    assert statistics["table_by_class"] == {"click": {"1": {"0": 1.0}}}


def test_gate_statistics_of_weights_below_sum_one_use_normalized_entropies() -> None:
    weights = torch.tensor([[0.2, 0.2, 0.0], [0.0, 0.0, 0.0]])  # Gumbel-softmax; its second task has no expert
    statistics = compute_statistics(weights, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), TASKS[:2])
    assert statistics["sparsity"] == {"click": pytest.approx(1.0), "like": pytest.approx(0.0)}
    assert statistics["utilisation"] == {"click": pytest.approx(1.0), "like": pytest.approx(0.0)}
    assert statistics["table"]["click"] == {"0": pytest.approx(0.2), "1": pytest.approx(0.2)}
    assert statistics["experts_a_task"] == {"click": 2.0, "like": 0.0}
    assert statistics["mutual_information"] == {"click": pytest.approx(0.0), "like": None}
    assert statistics["jaccard"]["all"] == 0.0


@pytest.mark.parametrize("shape", [(len(TASKS), EXPERTS), (0, len(TASKS), EXPERTS)], ids=["static", "per example"])
def test_gate_statistics_empty_batch_adds_nothing(shape: tuple[int, ...]) -> None:
    weights, labels = sparse_distributions(ROWS, len(TASKS), EXPERTS), random_labels(ROWS, len(TASKS))
    statistics = GateStatistics(TASKS, EXPERTS)
    statistics.add(torch.rand(*shape), torch.empty(0, len(TASKS)))
    assert statistics.to_json()["experts_a_row"] == 0.0
    statistics.add(weights, labels)
    assert_nested_equal(statistics.to_json(), statistics_in_loops(TASKS, weights.tolist(), labels.tolist()))


def test_gate_statistics_are_json_serializable_and_without_gradient() -> None:
    weights = sparse_distributions(ROWS, len(TASKS), EXPERTS).requires_grad_()
    statistics = GateStatistics(TASKS, EXPERTS)
    statistics.add(weights, random_labels(ROWS, len(TASKS)))
    assert not statistics.mean_weights.requires_grad
    assert json.loads(json.dumps(statistics.to_json())) == statistics.to_json()
