"""The single-task baseline: a model for each task that shares nothing, told together as if it were one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pipelines.config.config import Config, ServingConfig
from pipelines.runs.run import RunFolder
from ranking.gates.config import SharedBottomConfig


def configs(config: Config) -> dict[str, Config]:
    """Task → the configuration of its own model: one network and one tower."""
    model = config.model.model_copy(update={"gate": SharedBottomConfig(kind="shared_bottom")})
    return {
        task.name: config.model_copy(update={"tasks": (task,), "model": model, "serving": ServingConfig()})
        for task in config.tasks
    }


def selection(runs: Mapping[str, RunFolder]) -> dict[str, Any]:
    """``selection.json`` of the whole: as many experts as tasks, each used by its own."""
    each = {task: run.load_selection() for task, run in runs.items()}
    costs = {task: part["flops"]["frozen"] for task, part in each.items()}
    total = sum(costs.values())
    return {
        "num_experts": len(each),
        "k": 1,
        "per_example": False,
        "tasks": {task: {str(i): 1.0} for i, task in enumerate(each)},
        "experts_used": list(range(len(each))),
        "kind": "single_task",
        "converged": True,
        "binary_at_step": None,
        "snapped_codes": 0,
        "codes_changed": None,
        "steps": sum(part["steps"] for part in each.values()),
        "training_experts_of_top_k": None,
        "flops": {"dense": total, "frozen": total, "per_task": costs},
    }


def evaluation(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """``evaluation.json`` of the whole: each task as its own model predicts it."""
    each = list(parts)
    slices = {
        name: {
            value: {**found, "tasks": {task: m for part in each for task, m in _of(part, name, value).items()}}
            for value, found in values.items()
        }
        for name, values in each[0]["slices"].items()
    }
    return {
        "rows": each[0]["rows"],
        "ndcg_at": each[0]["ndcg_at"],
        "tasks": _joined(each, "tasks"),
        "calibration_curves": _joined(each, "calibration_curves"),
        "slices": slices,
        **{key: found for key in ("uncalibrated", "uncalibrated_curves") if (found := _joined(each, key))},
        "gates": None,
    }


def _joined(parts: Iterable[dict[str, Any]], key: str) -> dict[str, Any]:
    """What the parts say of their tasks under this key."""
    return {task: found for part in parts for task, found in part.get(key, {}).items()}


def _of(part: dict[str, Any], name: str, value: str) -> dict[str, Any]:
    """Measures by task of one value of a slice; a part that rejected all its rows has none."""
    found: dict[str, Any] = part["slices"][name].get(value, {"tasks": {task: {"rows": 0} for task in part["tasks"]}})
    return dict(found["tasks"])
