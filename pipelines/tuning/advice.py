"""Advice: the best way to spend a model's cost on a log, measured on validation rows."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipelines.config.config import Config
from pipelines.config.toml import inline_toml
from pipelines.console import print_status
from pipelines.evaluation.paired import paired_interval
from pipelines.evaluation.text_table import align_columns
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training.dataloader import BatchLoader
from pipelines.training.distributed import DistContext, get_world_size
from pipelines.training.embedding_tables import EmbeddingTables
from pipelines.training.labeled_batch import LabeledBatch
from pipelines.training.model_factory import build_model
from pipelines.training.setup import prepare
from pipelines.training.task_similarity import group_tasks, members, similarity_of_split
from pipelines.tuning.claimed_folder import claim_folder
from pipelines.tuning.search_space import override
from ranking.artifacts.atomic_files import write_json
from ranking.errors import ConfigError, LogError, UsageError
from ranking.selection import Shape
from ranking.settings.model import ModelConfig

CURRENT, SHARED = "the configuration", "one bottom for all tasks"
SEPARATE, SELECTED = "one bottom per group", "selection side by side"
SPARE = 1.5
"""Experts that the gates of ``SELECTED`` select from, relative to those that they may keep."""

Settings = dict[str, Any]
"""Value by setting, such as ``model.reading``."""


def advise(config: Config, folder: Path, seeds: int) -> dict[str, Any]:
    """Train the configuration and rivals of equal cost, and return which has the lowest validation losses.

    Trainings that an earlier call has finished are not repeated. The test split is not read.

    Args:
        config: the whole configuration.
        folder: folder of the trainings, which stay there, and of the result, ``advice.json``.
        seeds: number of seeds, at least two; differences are paired by seed.

    Raises:
        ConfigError: the model has one task, or no gate that selects experts for each task.
        LogError: the log cannot be used.
        OutputError: the folder has trainings of another configuration, or cannot be written.
    """
    _check(config)
    config = config.without_test_split()
    claim_folder(folder, config)

    def train_all(name: str, settings: Settings, prepared: RunFolder | None = None) -> list[RunFolder]:
        runs = []
        for seed in range(config.training.seed, config.training.seed + seeds):
            run = folder / f"{name.replace(' ', '-')}-{seed}"
            print_status(f"training: {name}, seed {seed}")
            with run.with_suffix(".log").open("a") as log, redirect_stderr(log):
                seeded = override(config, {**settings, "training.seed": seed})
                train(seeded, run, resume=True, prepared=prepared)
            runs.append(RunFolder(run))
            prepared = runs[0]
        return runs

    runs = {CURRENT: train_all(CURRENT, {})}
    first = runs[CURRENT][0]
    similarity, inputs = _inspect(config, first)
    groups = members(config.task_names, group_tasks(similarity, len(config.tasks)))
    flops = _mean_flops(runs[CURRENT])
    rivals: dict[str, Settings] = {}
    for name, settings in _rivals(len(groups)).items():
        fitted = fit_experts(config, settings, flops, inputs)
        if fitted is None:
            print_status(f"left out: {name}, which costs more than the configuration even with experts of one unit")
        else:
            rivals[name] = fitted
    if SHARED not in rivals:
        raise ConfigError(f"the configuration costs {flops:,.0f} FLOPs per row, less than any rival: widen its experts")
    for name, settings in rivals.items():
        is_same = override(config, settings).model == config.model
        runs[name] = runs[CURRENT] if is_same else train_all(name, settings, first)
    losses = {name: [_validation_losses(run) for run in trained] for name, trained in runs.items()}
    unlabeled = [task for task in config.task_names if any(base[task] <= 0 for base in losses[SHARED])]
    labeled = [task for task in config.task_names if task not in unlabeled]
    if not labeled:
        raise LogError("no task has labels in the validation split: move logs.validation_from")
    changes = {
        name: [
            100 * statistics.mean(loss[task] / base[task] - 1 for task in labeled)
            for loss, base in zip(values, losses[SHARED], strict=True)
        ]
        for name, values in losses.items()
    }
    recommended = recommend(changes)
    result = {
        "groups": groups,
        "seeds": seeds,
        "tasks": labeled,
        "without_labels": unlabeled,
        "models": {
            name: {
                "settings": rivals.get(name, {}),
                "runs": [run.path.name for run in runs[name]],
                "flops": _mean_flops(runs[name]),
                "change": dict(zip(("mean", "half_width"), paired_interval(values, changes[SHARED]), strict=True)),
            }
            for name, values in sorted(changes.items(), key=lambda item: statistics.mean(item[1]))
        },
        "recommended": recommended,
    }
    result["verdict"] = _verdict(result, override(config, rivals.get(recommended, {})).model)
    write_json(result, folder / "advice.json")
    return result


def recommend(changes: Mapping[str, list[float]]) -> str:
    """Return the model with the lowest mean loss if the interval of its gain excludes 0, otherwise the configuration.

    Args:
        changes: loss of each model by seed; ``CURRENT`` is one of them.
    """
    best = min(changes, key=lambda name: statistics.mean(changes[name]))
    gain, half_width = paired_interval(changes[best], changes[CURRENT])
    return best if gain + half_width < 0 else CURRENT


def _check(config: Config) -> None:
    """Check that the advice applies to a configuration.

    Raises:
        ConfigError: it does not; names the setting to change.
        UsageError: torchrun started several processes.
    """
    if get_world_size() > 1:
        raise UsageError("ranker advise trains its models one after the other in one process: run it without torchrun")
    if getattr(config.model.gate, "per_example", False):
        raise ConfigError("advice is about gates that select experts per task: set model.gate.per_example = false")
    if config.model.gate.kind in ("single_task", "attentive"):
        raise ConfigError("advice is about gates that select experts per task: choose another model.gate.kind")
    if config.training.teachers:
        raise ConfigError("advice is about learning from labels: remove training.teachers")
    if len(config.tasks) < 2:
        raise ConfigError("advice is about tasks that share experts: there is only one task")


def _mean_flops(runs: Sequence[RunFolder]) -> float:
    """Return the frozen FLOPs of a row with all tasks, mean of the runs."""
    return float(statistics.mean(run.load_selection()["flops"]["frozen"] for run in runs))


def _inspect(config: Config, run: RunFolder) -> tuple[Tensor, int]:
    """Return the similarity of the tasks and the width of the experts' input, from the files of a finished run."""
    data = prepare(config, run, DistContext())
    settings = config.training
    torch.manual_seed(settings.seed)  # A repeated call must find the same groups.
    model = build_model(config, data.encoder, data.position_encoder)
    EmbeddingTables(
        model.embeddings, settings.learning_rate.embeddings, settings.batch_size, DistContext(), settings.seed
    )
    encode = partial(LabeledBatch.from_table, encoder=data.encoder)
    loader = BatchLoader(data.reader, data.index, encode, config.logs, settings)
    return similarity_of_split(model, loader, settings.batch_size, DistContext()), model.shape.inputs


def _rivals(groups: int) -> dict[str, Settings]:
    """Return the settings of the rivals, without the widths of the experts."""
    shared = {"model.gate": {"kind": "shared_bottom"}, "model.reading": "sum"}
    if groups < 2:
        return {SHARED: shared}
    separate = {
        "model.gate": {"kind": "dselect_k", "k": 1, "experts_budget": groups},
        "model.experts": groups,
        "model.reading": "sum",
    }
    selected = {
        "model.gate": {"kind": "dselect_k", "k": 2, "experts_budget": 2 * groups},
        "model.experts": round(SPARE * 2 * groups),
        "model.reading": "side_by_side",
    }
    return {SHARED: shared, SEPARATE: separate, SELECTED: selected}


def fit_experts(config: Config, settings: Settings, flops: float, inputs: int) -> Settings | None:
    """Return settings with the widest experts that do not cost more; None if experts of one unit do.

    Args:
        config: the configuration, whose layers keep their proportions and whose towers stay.
        settings: settings of the gate, the experts and the reading.
        flops: cost of a row with all tasks.
        inputs: width of the experts' input.
    """
    gate, reading = settings["model.gate"], settings["model.reading"]
    experts, k = gate.get("experts_budget", 1), gate.get("k", 1)
    *_, last = config.model.expert_layers
    fitting, layers = None, [1 for _ in config.model.expert_layers]
    while Shape(inputs, layers, config.model.tower_layers, reading).row(experts, k, len(config.tasks)) <= flops:
        fitting = layers
        layers = [max(1, round(width * (layers[-1] + 1) / last)) for width in config.model.expert_layers]
    return None if fitting is None else {**settings, "model.expert_layers": fitting}


def _validation_losses(run: RunFolder) -> dict[str, float]:
    """Return the validation loss of each task at the check whose weights the run kept."""
    checks = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    losses: dict[str, float] = min(
        (check for check in checks if check["best"]), key=lambda check: float(check["validation_total"])
    )["validation"]
    return losses


def _verdict(advice: Mapping[str, Any], model: ModelConfig) -> str:
    """Say in sentences whether separate bottoms beat a shared one of equal cost, and recommend a model."""
    models, recommended = advice["models"], advice["recommended"]
    if SEPARATE in models:
        change, half_width = models[SEPARATE]["change"].values()
        order = "does not differ certainly from"
        if abs(change) > half_width:
            order = "is ahead of" if change < 0 else "is behind"
        percent = _percent(models[SEPARATE]["change"])
        separate = f"One bottom per group {order} {SHARED} of equal cost ({percent} validation loss)."
    elif len(advice["groups"]) == 1:
        separate = "All tasks are alike, so that there is nothing to separate."
    else:
        separate = "One bottom per group costs more than the configuration."
    settings = {
        "reading": model.reading,
        "experts": model.num_experts,
        "k": getattr(model.gate, "k", None),
        "experts_budget": model.experts_budget,
        "expert_layers": list(model.expert_layers),
    }
    named = ", ".join(f"{name} = {value}" for name, value in settings.items() if value is not None)
    doubt = ", because no rival is certainly better" if recommended == CURRENT else ""
    return f"{separate} Recommended: {recommended} ({named}){doubt}."


def _percent(change: Mapping[str, float]) -> str:
    return f"{change['mean']:+.2f} % ± {change['half_width']:.2f} %"


def format_advice(advice: Mapping[str, Any]) -> str:
    """Format the result of ``advise`` for a terminal."""
    rows = [["model", "FLOPs", "validation loss"]]
    for name, model in advice["models"].items():
        if model["settings"] and model["runs"] == advice["models"][CURRENT]["runs"]:
            name += ", which is the configuration"
        rows.append([name, f"{model['flops']:,.0f}", "–" if name == SHARED else _percent(model["change"])])
    settings = advice["models"][advice["recommended"]]["settings"]
    options = "".join(f"\n  --set '{key}={inline_toml(value)}'" for key, value in settings.items())
    return "\n".join(
        [
            f"groups of similar tasks: {'; '.join(map(', '.join, advice['groups']))}",
            "",
            *align_columns(rows),
            "",
            f"FLOPs: frozen, per row with all tasks. Validation loss: change from that of {SHARED}, mean of the tasks, "
            f"with its 95 % interval over {advice['seeds']} seeds.",
            *(f"Left out, without labels in the validation split: {task}" for task in advice["without_labels"]),
            f"{advice['verdict']}{options}",
        ]
    )
