"""Sections on the experts: weights by task, overlap of tasks, use of experts, cost and gate metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.report.run_data import RunData
from pipelines.report.section import Section

UNFINISHED = (
    "There is no selection.json because training has not finished. Finish it with 'ranker train … --resume', then "
    "create the report again."
)
READINGS = {
    "sum": "",
    "scaled": " A tower reads the sum of its experts, in which each unit has a learned factor.",
    "side_by_side": " A tower reads the outputs of its experts side by side.",
}
"""Sentence of each ``model.reading``."""
ADVICE = (
    "'ranker advise RUN --work DIR' measures whether separate networks or another selection of equal cost are better."
)
MAX_COLUMNS_WITH_NUMBERS = 16
"""Maximum number of heatmap columns whose cells are wide enough for a number."""


def selected_experts(run_data: RunData) -> Section:
    """Build the heatmap of expert weights (figure 4 of the DSelect-k paper), task overlap and expert use."""
    title, selection = "Selected experts", run_data.selection
    if selection is None:
        return Section("selection", title, omitted=UNFINISHED)
    if run_data.single_task:
        omitted = "Each task has a separate model, so no expert is shared. The next section shows the cost."
        return Section("selection", title, omitted=omitted)
    weights = {task: {int(e): w for e, w in row.items()} for task, row in selection["tasks"].items()}
    advice = (run_data.evaluation or {}).get("advice")
    experts, per_example = range(selection["num_experts"]), selection["per_example"]
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
        "Rows are tasks, columns are experts; darker cells have larger weights."
        + (" This gate is per example: the weights are means over the validation rows." if per_example else "")
        + READINGS[selection.get("reading", "sum")]
        + ("" if per_example or len(weights) < 2 else f" {advice['verdict'] if advice else ADVICE}"),
        {
            "weights": weights,
            "experts": list(experts),
            "show_weights": selection["num_experts"] <= MAX_COLUMNS_WITH_NUMBERS,
            "max_weight": max(weight for row in weights.values() for weight in row.values()),
            "overlap": overlap(weights),
            "similarity": None if run_data.task_similarity is None else similarity(run_data.task_similarity),
            "show_overlap": len(weights) <= MAX_COLUMNS_WITH_NUMBERS,
            "per_example": per_example,
            "use": use,
            "max_share": max(expert["share"] for expert in use),
            "unused": [expert for expert in experts if not totals[expert]],
        },
    )


def overlap(weights: Mapping[str, Mapping[int, float]]) -> dict[str, dict[str, float]]:
    """Return the weighted Jaccard index Σ min / Σ max of the expert weights of each pair of tasks."""
    return {task: {other: _jaccard(row, weights[other]) for other in weights} for task, row in weights.items()}


def similarity(record: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return the similarity of each pair of tasks by name; None if unknown."""
    return {
        task: dict(zip(record["tasks"], row, strict=True))
        for task, row in zip(record["tasks"], record["similarity"], strict=True)
    }


def _jaccard(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    experts = {*a, *b}
    union = sum(max(a.get(e, 0.0), b.get(e, 0.0)) for e in experts)
    return sum(min(a.get(e, 0.0), b.get(e, 0.0)) for e in experts) / union if union else 0.0


def cost(run_data: RunData) -> Section:
    """Build the FLOPs per row of the dense model, the frozen graph, and each task alone."""
    title, selection = "Cost per row", run_data.selection
    if selection is None:
        return Section("cost", title, omitted=UNFINISHED)
    flops = selection["flops"]
    bars = [
        {"name": "dense model", "flops": flops["dense"], "style": "dense"},
        {"name": "frozen graph, all tasks", "flops": flops["frozen"], "style": "frozen"},
        *({"name": task, "flops": value, "style": "task"} for task, value in flops["per_task"].items()),
    ]
    return Section(
        "cost",
        title,
        "FLOPs per row of the gate, experts, mixing and towers. A request for one task runs only its experts."
        + (
            " This gate is per example: the FLOPs are means over the validation rows."
            if selection["per_example"]
            else ""
        ),
        {"bars": bars, "dense": flops["dense"] or 1},
    )


def gate_metrics(run_data: RunData) -> Section:
    """Build the gate metrics of ``evaluation.json``."""
    title, evaluation = "Gate metrics", run_data.evaluation
    gates: dict[str, Any] | None = None if evaluation is None else evaluation.get("gates")
    if run_data.single_task:
        return Section("gates", title, omitted="Each task has a separate model, so there is no gate.")
    if gates is None:
        omitted = (
            "There are no gate metrics because no test rows were evaluated. Move logs.test_from so that there is a "
            "test split."
        )
        return Section("gates", title, omitted=omitted)
    groups = {task.name: task.group for task in run_data.config.tasks}
    return Section(
        "gates",
        title,
        "Computed on the test rows; entropies are in bits. H_s: mean entropy of a row's weights; 0 means one expert. "
        "H_u: entropy of the mean weights; log₂ n means that all experts are used equally. I(E;Y): information that "
        "the expert carries about the label; 0 for a static gate.",
        {"gates": gates, "groups": groups if any(groups.values()) else {}, "experts": range(gates["num_experts"])},
    )
