"""Summary at the top of the report: data, model, selection, cost, quality and warnings."""

from __future__ import annotations

from typing import Any

from pipelines.report import formatting
from pipelines.report.run_data import RunData
from ranking.metrics.verdict import verdict

MIN_POSITIVES = 60
"""Tasks with fewer positive test rows are listed in a note, because their metrics are unreliable (docs/results.md)."""

MAX_BAD_SHARE = 0.01
"""Share of bad rows above which the summary shows a note."""


def summarize(run_data: RunData) -> dict[str, Any]:
    """Return the verdict on the baselines, the sentence below the title, the tiles, and the notes."""
    return {
        "verdict": verdict((run_data.evaluation or {}).get("baselines")),
        "sentence": _sentence(run_data),
        "tiles": _tiles(run_data),
        "notes": _notes(run_data),
    }


def _sentence(run_data: RunData) -> str:
    config = run_data.config
    model, gate = config.model, config.model.gate
    tasks = f"{len(config.tasks)} task{'s' if len(config.tasks) > 1 else ''}"
    if run_data.single_task:
        return f"{tasks}, each trained as a separate model."
    text = f"{tasks} over {model.num_experts} expert{'s' if model.num_experts > 1 else ''}, gate {gate.kind}"
    if hasattr(gate, "k"):
        text += f" with at most {gate.k} experts per task"
    if run_data.per_example:
        text += ", selected per row"
    if model.experts_budget is not None:
        text += f" and at most {model.experts_budget} for all tasks together"
    return text + "."


def _tiles(run_data: RunData) -> list[tuple[str, str, str]]:
    """Return the (title, value, remark) of each tile."""
    tiles = []
    if run_data.survey is not None:
        rows = run_data.survey["rows"]
        remark = f"{formatting.count(rows['validation'])} validation, {formatting.count(rows['test'])} test"
        tiles.append(("training rows", formatting.count(rows["train"]), remark))
    selection = run_data.selection
    if selection is not None and not run_data.single_task:
        used, final_step = selection["experts_used"], selection["binary_at_step"]
        remark = "the gate makes no final selection"
        if final_step is not None:
            remark = f"selection exact after {formatting.percent(final_step / max(selection['steps'], 1))} of the steps"
        tiles.append(("experts used", f"{len(used)} of {selection['num_experts']}", remark))
    if selection is not None:
        flops = selection["flops"]
        share = formatting.percent(flops["frozen"] / (flops["dense"] or 1))
        remark = f"{formatting.short(flops['frozen'])} of {formatting.short(flops['dense'])} FLOPs per row"
        tiles.append(("frozen / dense cost", share, remark))
    if run_data.evaluation is not None:
        tiles += _quality_tiles(run_data.evaluation["tasks"])
    return tiles


def _quality_tiles(tasks: dict[str, Any]) -> list[tuple[str, str, str]]:
    tiles = []
    for key, name in (("auc", "AUC"), ("rmse", "RMSE")):
        values = {task: metrics[key] for task, metrics in tasks.items() if metrics.get(key) is not None}
        if not values:
            continue
        low, high = min(values, key=lambda task: values[task]), max(values, key=lambda task: values[task])
        remark = f"{low} {values[low]:.3f} to {high} {values[high]:.3f}" if len(values) > 1 else low
        mean = "mean " if len(values) > 1 else ""
        tiles.append((f"{mean}{name} on test rows", formatting.number(sum(values.values()) / len(values), 3), remark))
    return tiles


def _notes(run_data: RunData) -> list[str]:
    """Return warnings that affect how far the figures can be trusted."""
    notes = []
    selection, survey = run_data.selection, run_data.survey
    if selection is None:
        notes.append("Training has not finished: this page shows what it has written so far.")
    elif not selection["converged"]:
        notes.append("The gate has not converged, so this run cannot be frozen: train for more steps.")
    elif selection["snapped_codes"]:
        notes.append(
            f"{selection['snapped_codes']} selectors were still undecided when annealing ended and were snapped: "
            "train for more steps or anneal for longer."
        )
    if survey is not None and (bad := sum(survey["bad"].values())) > MAX_BAD_SHARE * sum(survey["rows"].values()):
        share = formatting.percent(bad / (bad + sum(survey["rows"].values())))
        notes.append(f"{share} of the rows are bad and were dropped; quarantine.jsonl in the run folder lists them.")
    if run_data.evaluation is not None:
        positives = {task: metrics.get("positives") for task, metrics in run_data.evaluation["tasks"].items()}
        few = [task for task, count in positives.items() if count is not None and count < MIN_POSITIVES]
        if few:
            notes.append(
                f"Fewer than {MIN_POSITIVES} positive test rows, so the metrics are unreliable: {', '.join(few)}."
            )
    return notes
