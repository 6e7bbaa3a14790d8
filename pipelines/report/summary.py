"""The top of the report: what was trained, on what, what was chosen, what it costs, how good it is."""

from __future__ import annotations

from typing import Any

from pipelines.report import formatting
from pipelines.report.run_data import RunData

FEW_POSITIVES = 60
"""Below so many a task's measures decide little, see docs/results.md."""

BAD_SHARE = 0.01


def summary(facts: RunData) -> dict[str, Any]:
    """The sentence under the title, the tiles, and what is worth a look."""
    return {"sentence": _sentence(facts), "tiles": _tiles(facts), "notes": _notes(facts)}


def _sentence(facts: RunData) -> str:
    config = facts.config
    model, gate = config.model, config.model.gate
    tasks = f"{len(config.tasks)} task{'s' if len(config.tasks) > 1 else ''}"
    if facts.single_task:
        return f"{tasks}, each with a model of its own that shares nothing."
    text = f"{tasks} over {model.num_experts} expert{'s' if model.num_experts > 1 else ''}, gate {gate.kind}"
    if hasattr(gate, "k"):
        text += f" with at most {gate.k} experts a task"
    if facts.per_example:
        text += ", chosen for each row"
    if model.experts_budget is not None:
        text += f" and {model.experts_budget} for all tasks together"
    return text + "."


def _tiles(facts: RunData) -> list[tuple[str, str, str]]:
    """(what, value, remark)."""
    tiles = []
    if facts.survey is not None:
        rows = facts.survey["rows"]
        remark = f"{formatting.count(rows['validation'])} validate, {formatting.count(rows['test'])} test"
        tiles.append(("training rows", formatting.count(rows["train"]), remark))
    chosen = facts.selection
    if chosen is not None and not facts.single_task:
        used, final = chosen["experts_used"], chosen["binary_at_step"]
        remark = "the gate has no final choice"
        if final is not None:
            remark = f"choice exact after {formatting.percent(final / max(chosen['steps'], 1))} of the steps"
        tiles.append(("experts used", f"{len(used)} of {chosen['num_experts']}", remark))
    if chosen is not None:
        costs = chosen["flops"]
        share = formatting.percent(costs["frozen"] / (costs["dense"] or 1))
        remark = f"{formatting.short(costs['frozen'])} of {formatting.short(costs['dense'])} FLOPs a row"
        tiles.append(("frozen of dense cost", share, remark))
    if facts.evaluation is not None:
        tiles += _quality_tiles(facts.evaluation["tasks"])
    return tiles


def _quality_tiles(tasks: dict[str, Any]) -> list[tuple[str, str, str]]:
    tiles = []
    for key, name in (("auc", "AUC"), ("rmse", "RMSE")):
        found = {task: measured[key] for task, measured in tasks.items() if measured.get(key) is not None}
        if not found:
            continue
        low, high = min(found, key=lambda task: found[task]), max(found, key=lambda task: found[task])
        remark = f"{low} {found[low]:.3f} to {high} {found[high]:.3f}" if len(found) > 1 else low
        mean = "mean " if len(found) > 1 else ""
        tiles.append((f"{mean}{name} on test rows", formatting.number(sum(found.values()) / len(found), 3), remark))
    return tiles


def _notes(facts: RunData) -> list[str]:
    """What a reader should know before trusting the numbers below."""
    notes = []
    chosen, survey = facts.selection, facts.survey
    if chosen is None:
        notes.append("The training has not finished: what follows is what it has left so far.")
    elif not chosen["converged"]:
        notes.append("The gate has not converged, so that this run cannot be frozen: train for more steps.")
    elif chosen["snapped_codes"]:
        notes.append(
            f"{chosen['snapped_codes']} selectors were still undecided when the ramp ended and were snapped: "
            "more steps or a longer ramp lets them choose."
        )
    if survey is not None and (bad := sum(survey["bad"].values())) > BAD_SHARE * sum(survey["rows"].values()):
        share = formatting.percent(bad / (bad + sum(survey["rows"].values())))
        notes.append(f"{share} of the rows are bad and were left out; quarantine.jsonl in the run folder names each.")
    if facts.evaluation is not None:
        positives = {task: measured.get("positives") for task, measured in facts.evaluation["tasks"].items()}
        few = [task for task, number in positives.items() if number is not None and number < FEW_POSITIVES]
        if few:
            notes.append(
                f"Fewer than {FEW_POSITIVES} positives among the test rows, so that the measures decide little: "
                f"{', '.join(few)}."
            )
    return notes
