"""How rows are divided among experts: each measure against plain loops over the rows."""

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


def sparse(*shape: int) -> Tensor:
    """Distributions of which about half the weights are 0."""
    weights = torch.rand(*shape, dtype=torch.float64) * (torch.rand(*shape) < 0.5)
    weights[..., 0] += (weights.sum(-1) == 0).double()
    return weights / weights.sum(-1, keepdim=True)


def some_labels(rows: int, tasks: int) -> Tensor:
    """0 or 1, a fifth unknown."""
    return torch.where(torch.rand(rows, tasks) < 0.2, torch.nan, torch.randint(2, (rows, tasks)).float())


def bits(p: Sequence[float]) -> float:
    return -sum(x * math.log2(x) for x in p if x > 0)


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def in_loops(tasks: Sequence[Task], weights: list[list[list[float]]], labels: list[list[float]]) -> dict[str, Any]:
    """All measures of rows' weights [rows][tasks][experts]."""
    rows, experts = range(len(weights)), range(len(weights[0][0]))
    used = [[{e for e in experts if w[e] > 0} for w in row] for row in weights]

    def jaccard(i: int, j: int) -> float:
        return sum(len(used[r][i] & used[r][j]) / len(used[r][i] | used[r][j]) for r in rows) / len(rows)

    pairs = [(i, j) for i in range(len(tasks)) for j in range(i)]
    groups = [task.group for task in tasks]
    found: dict[str, Any] = {
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
        by_task["sparsity"][task.name] = mean([bits(weights[r][t]) for r in rows])
        by_task["utilisation"][task.name] = bits(average)
        by_task["table"][task.name] = {str(e): w for e, w in enumerate(average) if w > 0}
        by_task["mutual_information"][task.name] = None
        if task.kind == "binary":
            counts = [[sum(weights[r][t][e] for r in rows if labels[r][t] == c) for e in experts] for c in (0, 1)]
            total = sum(map(sum, counts))
            if total:
                joint = [count / total for row in counts for count in row]
                experts_share = [(counts[0][e] + counts[1][e]) / total for e in experts]
                by_task["mutual_information"][task.name] = (
                    bits(experts_share) + bits([sum(row) / total for row in counts]) - bits(joint)
                )
            by_class[task.name] = {
                str(c): {str(e): w / sum(row) for e, w in enumerate(row) if w > 0}
                for c, row in enumerate(counts)
                if sum(row)
            }
    return found | by_task | {"table_by_class": by_class}


def same(found: Any, expected: Any, where: str = "") -> None:
    """Equal up to rounding, through nested dictionaries."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            same(found[key], expected[key], f"{where}.{key}")
    elif expected is None:
        assert found is None, where
    else:
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), where


def measured(weights: Tensor, labels: Tensor, tasks: Sequence[Task] = TASKS, batch: int = ROWS) -> dict[str, Any]:
    found = GateStatistics(tasks, weights.shape[-1])
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        found.add(weights[part] if weights.dim() == 3 else weights, labels[part])
    return found.to_json()


# Against loops.


@pytest.mark.parametrize("batch", [1, 7, ROWS])
def test_a_per_example_gates_measures_are_those_of_plain_loops(batch: int) -> None:
    weights, labels = sparse(ROWS, len(TASKS), EXPERTS), some_labels(ROWS, len(TASKS))
    same(measured(weights, labels, batch=batch), in_loops(TASKS, weights.tolist(), labels.tolist()))


@pytest.mark.parametrize("batch", [1, 7, ROWS])
def test_a_static_gates_measures_are_those_of_a_gate_that_does_the_same_for_every_row(batch: int) -> None:
    weights, labels = sparse(len(TASKS), EXPERTS), some_labels(ROWS, len(TASKS))
    expanded = weights.expand(ROWS, *weights.shape)
    expected = in_loops(TASKS, expanded.tolist(), labels.tolist())
    for form in (weights, expanded, expanded.clone()):
        same(measured(form, labels, batch=batch), expected)


def test_weights_in_float32_are_taken_too() -> None:
    weights, labels = sparse(ROWS, len(TASKS), EXPERTS), some_labels(ROWS, len(TASKS))
    found, expected = measured(weights.float(), labels), measured(weights, labels)
    assert found["experts_a_row"] == expected["experts_a_row"]
    assert found["mutual_information"]["click"] == pytest.approx(expected["mutual_information"]["click"], abs=1e-5)


# By hand.


def test_entropies_are_in_bits() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.25] * 4], dtype=torch.float64)
    assert entropy(p).tolist() == pytest.approx([1.0, 0.0, 2.0])


@pytest.mark.parametrize(
    ("counts", "bits"),
    [
        ([[5.0, 0.0], [0.0, 5.0]], 1.0),  # the expert tells the class
        ([[2.0, 6.0], [1.0, 3.0]], 0.0),  # independent
        ([[8.0, 0.0], [0.0, 0.0]], 0.0),
        ([[1.0, 1.0], [2.0, 0.0]], 0.311278),  # H(¾, ¼) + 1 − H(¼, ¼, ½)
    ],
)
def test_mutual_information_by_hand(counts: list[list[float]], bits: float) -> None:
    found = mutual_information(torch.tensor(counts, dtype=torch.float64))
    assert found == pytest.approx(bits, abs=1e-6)
    assert found >= 0.0


def test_a_static_gate_knows_nothing_of_the_label() -> None:
    information = measured(sparse(len(TASKS), EXPERTS), some_labels(ROWS, len(TASKS)))["mutual_information"]
    assert [information[name] for name in ("click", "like", "share")] == pytest.approx([0.0] * 3, abs=1e-9)


def test_the_jaccard_index_by_hand() -> None:
    tasks = [task for task in TASKS if task.name != "watch"]
    weights = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.5, 0.5, 0.0], [0.0, 0.5, 0.0, 0.5], [0.5, 0.5, 0.0, 0.0]])
    found = measured(weights, some_labels(5, 4), tasks)["jaccard"]
    assert found["within_groups"] == pytest.approx(1 / 3)  # like {1, 2} and share {1, 3}
    assert found["across_groups"] == pytest.approx(1 / 3)  # click {0, 1} with each of them
    assert found["all"] == pytest.approx((5 * (1 / 3) + 1) / 6), "rating has no group and what click has"


def test_tasks_without_a_group_are_in_no_group_together() -> None:
    tasks = [Task(name=name, kind="binary") for name in ("a", "b")]
    found = measured(torch.eye(2), some_labels(5, 2), tasks)["jaccard"]
    assert found == {"all": 0.0, "within_groups": None, "across_groups": None}


def test_what_is_undefined_is_none() -> None:
    tasks = TASKS[:1]
    found = measured(torch.ones(1, EXPERTS) / EXPERTS, torch.full((3, 1), torch.nan), tasks)
    assert found["jaccard"] == {"all": None, "within_groups": None, "across_groups": None}
    assert found["mutual_information"] == {"click": None}
    assert found["table_by_class"] == {"click": {}}


def test_a_class_that_does_not_occur_has_no_line() -> None:
    found = measured(torch.ones(1, 2) / 2, torch.tensor([[1.0], [torch.nan], [1.0]]), TASKS[:1])
    assert found["table_by_class"] == {"click": {"1": {"0": 0.5, "1": 0.5}}}


def test_a_row_without_a_label_counts_as_use_of_its_expert_but_in_no_class() -> None:
    weights = torch.zeros(2, 1, 3)
    weights[0, 0, 0] = weights[1, 0, 2] = 1.0
    found = measured(weights, torch.tensor([[1.0], [torch.nan]]), TASKS[:1])
    assert found["table"] == {"click": {"0": 0.5, "2": 0.5}}
    assert found["table_by_class"] == {"click": {"1": {"0": 1.0}}}


def test_weights_that_sum_to_less_than_1_are_shares_where_a_share_is_meant() -> None:
    weights = torch.tensor([[0.2, 0.2, 0.0], [0.0, 0.0, 0.0]])  # Gumbel-softmax; its second task has no expert
    found = measured(weights, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), TASKS[:2])
    assert found["sparsity"] == {"click": pytest.approx(1.0), "like": pytest.approx(0.0)}
    assert found["utilisation"] == {"click": pytest.approx(1.0), "like": pytest.approx(0.0)}
    assert found["table"]["click"] == {"0": pytest.approx(0.2), "1": pytest.approx(0.2)}
    assert found["experts_a_task"] == {"click": 2.0, "like": 0.0}
    assert found["mutual_information"] == {"click": pytest.approx(0.0), "like": None}
    assert found["jaccard"]["all"] == 0.0


@pytest.mark.parametrize("shape", [(len(TASKS), EXPERTS), (0, len(TASKS), EXPERTS)], ids=["static", "per example"])
def test_no_rows_add_nothing(shape: tuple[int, ...]) -> None:
    weights, labels = sparse(ROWS, len(TASKS), EXPERTS), some_labels(ROWS, len(TASKS))
    found = GateStatistics(TASKS, EXPERTS)
    found.add(torch.rand(*shape), torch.empty(0, len(TASKS)))
    assert found.to_json()["experts_a_row"] == 0.0
    found.add(weights, labels)
    same(found.to_json(), in_loops(TASKS, weights.tolist(), labels.tolist()))


def test_it_is_json_and_keeps_no_gradient() -> None:
    weights = sparse(ROWS, len(TASKS), EXPERTS).requires_grad_()
    found = GateStatistics(TASKS, EXPERTS)
    found.add(weights, some_labels(ROWS, len(TASKS)))
    assert not found.mean_weights.requires_grad
    assert json.loads(json.dumps(found.to_json())) == found.to_json()
