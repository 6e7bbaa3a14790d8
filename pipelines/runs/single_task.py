"""Single-task baseline: one independent model per task, reported as one run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipelines.config.config import Config, ServingConfig
from pipelines.runs.run import RunFolder
from ranking.schema import CrossFeature
from ranking.selection import Selection
from ranking.settings.gate import SharedBottomConfig


def task_configs(config: Config) -> dict[str, Config]:
    """Return the configuration of each task's model: one expert and one tower.

    Its counters and histories use only the label of the task.
    """
    model = config.model.model_copy(update={"gate": SharedBottomConfig(kind="shared_bottom")})
    return {
        task.name: _with_own_label(config, task.name).model_copy(
            update={"tasks": (task,), "model": model, "serving": ServingConfig()}
        )
        for task in config.tasks
    }


def _with_own_label(config: Config, task: str) -> Config:
    """Return the configuration without the features of counters and histories that use the labels of other tasks."""
    counters = tuple(c.model_copy(update={"labels": (task,)}) for c in config.counters if task in c.labels)
    histories = tuple(history for history in config.histories if history.label == task)
    reduced = config.model_copy(update={"counters": counters, "histories": histories})
    removed = config.counter_columns - reduced.counter_columns
    features = tuple(f for f in config.features if isinstance(f, CrossFeature) or f.column not in removed)
    slices = tuple(name for name in config.evaluation.slices if name not in config.counter_columns)
    evaluation = config.evaluation.model_copy(update={"slices": slices})
    return reduced.model_copy(update={"features": features, "evaluation": evaluation})


def merge_selections(runs: Mapping[str, RunFolder]) -> dict[str, Any]:
    """Return ``selection.json`` of the baseline: one expert per task.

    Args:
        runs: task → its run.
    """
    records = {task: run.load_selection() for task, run in runs.items()}
    costs = {task: record["flops"]["frozen"] for task, record in records.items()}
    total = sum(costs.values())
    selection = Selection(len(records), 1, {task: {i: 1.0} for i, task in enumerate(records)})
    flops = {"dense": total, "frozen": total, "per_task": costs}
    return joint_record(selection, "single_task", list(records.values()), flops)


def joint_record(
    selection: Selection, kind: str, records: Sequence[Mapping[str, Any]], flops: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of ``selection.json`` for several models that serve together.

    Args:
        selection: their selections in one.
        kind: name of their gates.
        records: ``selection.json`` of each.
        flops: their FLOPs per row together.
    """
    return {
        **selection.to_json(),
        "kind": kind,
        "converged": True,
        "binary_at_step": None,
        "snapped_codes": sum(record["snapped_codes"] for record in records),
        "codes_changed": None,
        "steps": sum(record["steps"] for record in records),
        "trained_rows": max(record.get("trained_rows", 0) for record in records),
        "training_experts_of_top_k": None,
        "flops": dict(flops),
    }


def merge_evaluations(evaluations: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return ``evaluation.json`` of the baseline from the evaluations of its tasks."""
    parts = list(evaluations)
    slices = {
        name: {
            value: {**entry, "tasks": {task: m for part in parts for task, m in _slice(part, name, value).items()}}
            for value, entry in values.items()
        }
        for name, values in parts[0]["slices"].items()
    }
    return {
        "rows": parts[0]["rows"],
        "users": parts[0].get("users", 1.0),
        "bad_rows": {reason: rows for part in parts for reason, rows in part.get("bad_rows", {}).items()},
        **({"intervals": parts[0]["intervals"]} if "intervals" in parts[0] else {}),
        "ndcg_at": parts[0]["ndcg_at"],
        "tasks": _merge(parts, "tasks"),
        "calibration_curves": _merge(parts, "calibration_curves"),
        "slices": slices,
        **{key: merged for key in ("uncalibrated", "uncalibrated_curves") if (merged := _merge(parts, key))},
        **(
            {"baselines": merge_baselines([part["baselines"] for part in parts])}
            if all("baselines" in part for part in parts)
            else {}
        ),
        **({"importance": _merge_importance(parts)} if all("importance" in part for part in parts) else {}),
        "gates": None,
    }


def _merge_importance(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the importance of each task's model; a feature of a counter may exist in the models of some tasks only."""
    results = [part["importance"] for part in parts]
    entries: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in (entry for result in results for entry in result["entries"]):
        merged = entries.setdefault((entry["kind"], entry["name"]), {**entry, "features": [], "tasks": {}})
        merged["features"] = list(dict.fromkeys([*merged["features"], *entry["features"]]))
        merged["tasks"].update(entry["tasks"])
    return {**results[0], "metrics": _merge(results, "metrics"), "entries": list(entries.values())}


def merge_baselines(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the entries ``baselines`` of each task's model; all of them are omitted if those of one task are."""
    omitted = next((entry for entry in entries if "omitted" in entry), None)
    return omitted or {**entries[0], "tasks": _merge(entries, "tasks")}


def _merge(parts: Iterable[dict[str, Any]], key: str) -> dict[str, Any]:
    """Merge the dictionaries by task that the parts have under a key."""
    return {task: value for part in parts for task, value in part.get(key, {}).items()}


def _slice(part: dict[str, Any], name: str, value: str) -> dict[str, Any]:
    """Return the metrics by task of one value of a slice; zero rows if the part has no usable row there."""
    empty = {"tasks": {task: {"rows": 0} for task in part["tasks"]}}
    entry: dict[str, Any] = part["slices"][name].get(value, empty)
    return dict(entry["tasks"])
