"""Quality of counters and histories: the same configuration with and without them.

Trains each configuration with several seeds and compares them on the same rows of one split. Choose settings on the
validation split and read the test split once, at the end. Finished runs in the work folder are used again.

    python -m benchmarks.counters kr/ranker.toml --work WORK --split test
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipelines.config.config import Config, load_config
from pipelines.data.splits import split_range
from pipelines.evaluation.compare import metric_difference
from pipelines.evaluation.evaluate import bootstrap_metrics
from pipelines.evaluation.predict import Predictions, predict
from pipelines.evaluation.sources import run_scorers
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from ranking.metrics import Array, UnitDraws

METRICS = {"binary": ("auc", "gauc", "gauc_by_user_day"), "regression": ("rmse",)}
"""Reported metrics of each kind of task."""
WITHOUT, WITH = "without counters", "with counters"

Metrics = Mapping[str, Mapping[str, Array]]
"""Task → metric → value in the data and in each bootstrap draw [1 + B]."""


def without_derived(config: Config) -> Config:
    """Return the configuration without counters and histories."""
    derived = {feature.name for feature in config.training_schema.derived}
    features = tuple(feature for feature in config.features if feature.name not in derived)
    return config.model_copy(update={"counters": (), "histories": (), "features": features})


def trained(config: Config, folder: Path, seed: int) -> RunFolder:
    """Return the run of a configuration with a seed; train it if it is not finished."""
    training = config.training.model_copy(update={"seed": seed})
    config = config.model_copy(update={"training": training})
    return train(config, folder, resume=folder.exists())


def scored(run: RunFolder, config: Config, split: str) -> Predictions:
    """Return the predictions of a run on one split of its log."""
    (scorer,) = run_scorers(run)
    return predict(scorer, replace(scorer.log_range(None), time_range=split_range(config.logs, split)))


def measured(predictions: Predictions, draws: UnitDraws, config: Config) -> Metrics:
    """Return the metrics of each task under the same draws."""
    metrics = {}
    for i, task in enumerate(predictions.tasks):
        rows = predictions.task_rows(i, draws, predictions.has_label(i))
        metrics[task.name] = bootstrap_metrics(task, rows, draws, config.evaluation)
    return metrics


def mean(parts: Sequence[Metrics]) -> Metrics:
    """Return the mean of metrics over seeds, in the data and in each draw."""
    return {
        task: {metric: np.mean([part[task][metric] for part in parts], axis=0) for metric in metrics}
        for task, metrics in parts[0].items()
    }


def table(results: Mapping[str, Metrics], config: Config, units: int) -> str:
    """Return the means over seeds as a Markdown table, with the paired difference that counters make."""
    models = list(results)
    lines = [
        f"| task | metric | {' | '.join(models)} | {WITH} − {WITHOUT} |",
        f"|---|---|{'---|' * (len(models) + 1)}",
    ]
    for task in config.tasks:
        for metric in METRICS[task.kind]:
            values = {model: results[model][task.name].get(metric) for model in models}
            if any(value is None for value in values.values()):
                continue
            cells = [f"{value[0]:.4f}" for value in values.values() if value is not None]
            difference = metric_difference(metric, values[WITHOUT], values[WITH], units)  # type: ignore[arg-type]
            low, high = difference["interval"] or (float("nan"), float("nan"))
            change = f"{difference['difference']:+.4f} [{low:+.4f}, {high:+.4f}]"
            lines.append(f"| {task.name} | {metric} | {' | '.join(cells)} | {change} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train, score and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="ranker.toml with [[counters]]")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    configs = {WITHOUT: without_derived(config), WITH: config}
    predictions: dict[str, list[Predictions]] = {}
    for label, model_config in configs.items():
        for seed in range(arguments.seeds):
            run = trained(model_config, arguments.work / f"{label.replace(' ', '-')}-{seed}", seed)
            predictions.setdefault(label, []).append(scored(run, model_config, arguments.split))
    first = predictions[WITHOUT][0]
    draws = UnitDraws(first.units, config.evaluation.bootstrap)
    results = {label: mean([measured(part, draws, config) for part in parts]) for label, parts in predictions.items()}
    print(f"{len(first):,} rows of the {arguments.split} split, {arguments.seeds} seeds\n")
    print(table(results, config, len(np.unique(first.units.codes))))


if __name__ == "__main__":
    main()
