"""What the gates chose: weights by task, overlap of tasks, use of experts, measures, cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.report.run_data import RunData
from pipelines.report.section import Section

UNFINISHED = "There is no selection.json: the training has not finished. Finish it ('ranker train'), then report again."
NUMBERS_UP_TO = 16
"""Columns that leave room for a number in each cell."""


def selection(facts: RunData) -> Section:
    """The heatmap of expert weights (figure 4 of the DSelect-k paper), tasks' overlap and experts' use."""
    title, chosen = "Chosen experts", facts.selection
    if chosen is None:
        return Section("selection", title, lack=UNFINISHED)
    if facts.single_task:
        lack = "Each task has a model of its own, so that no expert is shared. What they cost stands below."
        return Section("selection", title, lack=lack)
    weights = {task: {int(e): w for e, w in row.items()} for task, row in chosen["tasks"].items()}
    experts, per_example = range(chosen["num_experts"]), chosen["per_example"]
    totals = {expert: sum(row.get(expert, 0.0) for row in weights.values()) for expert in experts}
    use = [
        {
            "expert": expert,
            "tasks": [task for task, row in weights.items() if row.get(expert, 0.0) > 0],
            "share": totals[expert] / (sum(totals.values()) or 1.0),
        }
        for expert in experts
        if totals[expert] > 0
    ]
    return Section(
        "selection",
        title,
        "Each row is a task, each column an expert; the darker, the heavier."
        + (" This gate decides per example: the weights are means over the validation rows." if per_example else ""),
        {
            "weights": weights,
            "experts": list(experts),
            "numbers": chosen["num_experts"] <= NUMBERS_UP_TO,
            "most": max(weight for row in weights.values() for weight in row.values()),
            "overlap": overlap(weights),
            "overlap_numbers": len(weights) <= NUMBERS_UP_TO,
            "per_example": per_example,
            "use": use,
            "use_most": max(expert["share"] for expert in use),
            "unused": [expert for expert in experts if not totals[expert]],
        },
    )


def overlap(weights: Mapping[str, Mapping[int, float]]) -> dict[str, dict[str, float]]:
    """Task → task → weighted Jaccard index of their experts, Σ min / Σ max of the weights: 1 if they are used alike."""
    return {task: {other: _jaccard(row, weights[other]) for other in weights} for task, row in weights.items()}


def _jaccard(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    either = {*a, *b}
    most = sum(max(a.get(e, 0.0), b.get(e, 0.0)) for e in either)
    return sum(min(a.get(e, 0.0), b.get(e, 0.0)) for e in either) / most if most else 0.0


def cost(facts: RunData) -> Section:
    """FLOPs of the dense model, of the frozen graph, and of each task asked for alone."""
    title, chosen = "Cost of a row", facts.selection
    if chosen is None:
        return Section("cost", title, lack=UNFINISHED)
    costs = chosen["flops"]
    bars = [
        {"name": "dense model", "flops": costs["dense"], "style": "dense"},
        {"name": "frozen graph, all tasks", "flops": costs["frozen"], "style": "frozen"},
        *({"name": task, "flops": value, "style": "task"} for task, value in costs["per_task"].items()),
    ]
    return Section(
        "cost",
        title,
        "FLOPs of gate, experts, mixing and towers for one row. A request that asks for one task runs only its experts."
        + (" Means over the validation rows, because this gate decides per example." if chosen["per_example"] else ""),
        {"bars": bars, "dense": costs["dense"] or 1},
    )


def measures(facts: RunData) -> Section:
    """What ``evaluation.json`` says about the gates."""
    title, evaluation = "What the gates do", facts.evaluation
    found: dict[str, Any] | None = None if evaluation is None else evaluation.get("gates")
    if facts.single_task:
        return Section("gates", title, lack="Each task has a model of its own: there is no gate to measure.")
    if found is None:
        lack = "The run has no measures of its gates on test rows: move logs.test_from so that a test split is left."
        return Section("gates", title, lack=lack)
    groups = {task.name: task.group for task in facts.config.tasks}
    return Section(
        "gates",
        title,
        "Measured on the test rows, entropies in bits. H_s: of a row's weights, 0 is one expert. H_u: of the mean "
        "weights, log₂ n is all experts alike. I(E;Y): what the expert tells about the label, 0 for a static gate.",
        {"gates": found, "groups": groups if any(groups.values()) else {}, "experts": range(found["num_experts"])},
    )
