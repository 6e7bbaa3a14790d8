"""Fixtures: generated run folders of any size that contain every file of a run."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.config.config import Config
from pipelines.runs.run import RunFolder

CHECKS, STEPS = 40, 2_000
K = 2


def make_config(tasks: int, experts: int, **gate: Any) -> Config:
    """Return a configuration whose last task is a regression."""
    names = [*(f"task_{i}" for i in range(tasks - 1)), "minutes"]
    return Config.model_validate(
        {
            "name": "feed",
            "features": [{"name": "item_id", "kind": "categorical", "owner": "item"}],
            "tasks": [
                {"name": name, "kind": "regression" if name == "minutes" else "binary", "group": f"group_{i % 3}"}
                for i, name in enumerate(names)
            ],
            "logs": {"path": "/logs", "validation_from": "2026-01-09", "test_from": "2026-01-10"},
            "model": {"experts": experts, "gate": gate},
            "training": {"epochs": 2},
        }
    )


def write_run(folder: Path, tasks: int = 3, experts: int = 4, **gate: Any) -> RunFolder:
    """Write a finished run that has every file a report reads."""
    config = make_config(tasks, experts, **gate)
    run = RunFolder.create(folder, config)
    weights = {name: {i % experts: 0.75, (i * 3 + 1) % experts: 0.25} for i, name in enumerate(config.task_names)}
    for record in checks(config, weights):
        run.append_metrics(record)
    run.best.write_bytes(b"")
    contents = {
        run.survey: survey(config),
        run.command: command(),
        run.selection: selection(config, weights),
        run.evaluation: evaluation(config, weights),
    }
    for file, content in contents.items():
        file.write_text(json.dumps(content))
    return run


@pytest.fixture(scope="session")
def written_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run that has every file a report reads; read only."""
    return write_run(tmp_path_factory.mktemp("written") / "run")


@pytest.fixture
def finished_run(written_run: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of ``written_run`` that a test may change."""
    return RunFolder(Path(shutil.copytree(written_run.path, tmp_path / "run")))


def checks(config: Config, weights: dict[str, dict[int, float]]) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    n = config.model.num_experts
    records = []
    for check in range(1, CHECKS + 1):
        step = STEPS * check // CHECKS
        share = min(step / (0.6 * STEPS), 1.0)
        losses = {name: 0.5 + math.exp(-check / 9) * (i % 4) for i, name in enumerate(config.task_names)}
        noise = random.dirichlet(np.ones(n), len(losses)) * (1 - share)
        records.append(
            {
                "step": step,
                "epoch": 2 * step / STEPS,
                "phase": "selected" if share == 1 else "selecting",
                "gamma": 1.0,
                "experts": n if share < 1 else min(n, 2),
                "rows_per_second": 10_000,
                "learning_rate": 1e-3,
                "train": losses,
                "validation": {name: loss + 0.05 for name, loss in losses.items()},
                "validation_total": sum(losses.values()),
                "best": share == 1,
                "gate_weights": {
                    name: [float(noise[i, e] + share * weights[name].get(e, 0.0)) for e in range(n)]
                    for i, name in enumerate(losses)
                },
            }
        )
    return records


def survey(config: Config) -> dict[str, Any]:
    rows = {"train": 80_000, "validation": 10_000, "test": 9_000}
    return {
        "rows": rows,
        "duplicates": 17,
        "bad": {"'price' is NaN": 12, "'time' is null": 3},
        "null_rate": {"item_id": 0.0, "age": 0.25},
        "labels": {
            split: {task.name: {"rows": count - 10, "mean": 0.0125} for task in config.tasks}
            for split, count in rows.items()
        },
    }


def command() -> dict[str, Any]:
    return {
        "argv": ["ranker", "train", "my logs/ranker.toml", "--run", "runs/1"],
        "versions": {"python": "3.11.9", "torch": "2.13.0"},
        "environment": {"OMP_NUM_THREADS": "1"},
        "system": "Linux x86_64",
        "threads": 1,
    }


def selection(config: Config, weights: dict[str, dict[int, float]]) -> dict[str, Any]:
    return {
        "num_experts": config.model.num_experts,
        "k": K,
        "per_example": False,
        "tasks": {task: {str(e): w for e, w in row.items()} for task, row in weights.items()},
        "experts_used": sorted({e for row in weights.values() for e in row}),
        "kind": config.model.gate.kind,
        "converged": True,
        "binary_at_step": 1_100,
        "snapped_codes": 0,
        "codes_changed": 0.5,
        "steps": STEPS,
        "training_experts_of_top_k": 1.5,
        "flops": {"dense": 1_200_000, "frozen": 420_000, "per_task": dict.fromkeys(weights, 150_000)},
    }


def metrics(kind: str, value: float) -> dict[str, Any]:
    if kind == "regression":
        return {"rows": 9_000, "rmse": 1 + value, "rmse_interval": [value + 0.9, value + 1.1], "mae": 0.8}
    return {
        "rows": 9_000,
        "positives": 450,
        "auc": value,
        "auc_interval": [value - 0.02, value + 0.02],
        "gauc": value - 0.01,
        "gauc_by_user_day": value - 0.02,
        "logloss": 0.2,
        "normalised_entropy": 0.9,
        "calibration": 1.03,
        "calibration_error": 0.004,
        "ndcg": 0.8,
    }


def evaluation(config: Config, weights: dict[str, dict[int, float]]) -> dict[str, Any]:
    tasks = {task.name: metrics(task.kind, 0.6 + 0.3 * i / len(weights)) for i, task in enumerate(config.tasks)}
    curve = [
        {"predicted": x * x, "observed": 1.1 * x * x, "low": 0.9 * x * x, "high": 1.3 * x * x, "rows": 900}
        for x in np.linspace(0.05, 0.5, 10).tolist()
    ]
    curve[0].update(low=None, high=None)
    ones = dict.fromkeys(weights, 1.0)
    return {
        "rows": 9_000,
        "ndcg_at": 10,
        "tasks": tasks,
        "gates": {
            "kind": config.model.gate.kind,
            "num_experts": config.model.num_experts,
            "k": K,
            "per_example": False,
            "experts_used": 4,
            "experts_a_row": 2.0,
            "experts_a_task": ones,
            "jaccard": {"all": 0.5, "within_groups": 0.75, "across_groups": None},
            "sparsity": ones,
            "utilisation": ones,
            "mutual_information": dict.fromkeys(weights),
            "table": {},
            "table_by_class": {},
            "training_experts_of_top_k": 1.5,
        },
        "calibration_curves": {task.name: curve for task in config.tasks if task.kind == "binary"},
        "slices": {
            "tab": {str(i): {"rows": 3_000 - i, "tasks": tasks} for i in range(25)},
            "new_user": {"new": {"rows": 100, "tasks": tasks}, "known": {"rows": 8_900, "tasks": tasks}},
        },
        "uncalibrated": {config.tasks[0].name: metrics("binary", 0.7) | {"logloss": 0.25}},
        "baselines": baselines_of(config),
        "importance": importance_of(config, 40),
    }


def baselines_of(config: Config) -> dict[str, Any]:
    """Return the baselines of the tasks: popularity is not beaten, LightGBM is omitted."""
    tasks: dict[str, Any] = {}
    for task in config.tasks:
        names = ("auc", "gauc_by_user_day", "logloss") if task.kind == "binary" else ("rmse", "r2")
        values = {"model": 0.8, "baseline": 0.81, "difference": -0.01, "interval": [-0.02, 0.01], "better": None}
        tasks[task.name] = {"popularity": dict.fromkeys(names, values), "lightgbm": {"omitted": "not installed"}}
    return {"training_rows": 70_000, "sampled_rows": 50_000, "tasks": tasks}


def importance_of(config: Config, features: int) -> dict[str, Any]:
    """Return the importance of a number of features, of which every second one is noise, and of one counter."""
    names = [("feature", f"feature_{i}") for i in range(features)] + [("counter", "user_id")]
    entries = []
    for i, (kind, name) in enumerate(names):
        value = 0.06 / (1 + i) if i % 2 == 0 else (-1) ** (i // 2) * 0.0005
        result = {"importance": value, "interval": [value - 0.002, value + 0.002]}
        tasks = {task.name: result for task in config.tasks}
        entries.append({"kind": kind, "name": name, "features": [name], "shuffled_by": "row", "tasks": tasks})
    return {
        "rows": 9_000,
        "shuffles": 2,
        "intervals": {"unit": "user", "units": 3_000, "rows_without_user": 0, "draws": 200},
        "metrics": {task.name: "auc" if task.kind == "binary" else "rmse" for task in config.tasks},
        "entries": entries,
    }
