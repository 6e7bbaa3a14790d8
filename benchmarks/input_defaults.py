"""Gain of the defaults for numbers, rare ids and histories: each alone and all together, on the validation split.

Trains a configuration without them, with each of them and with all of them, with several seeds, and prints the paired
differences. Finished runs in the work folder are used again.

    python -m benchmarks.input_defaults kr/ranker.toml --work WORK
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.counters.metrics import METRICS, measured
from benchmarks.counters.runs import scored, trained
from pipelines.config.config import Config, load_config
from pipelines.evaluation.paired import mean_and_error
from pipelines.evaluation.sources import run_scorers
from ranking.metrics import UnitDraws
from ranking.schema import NumericFeature

PARTS = ("oov_dropout", "bins", "histories")
"""Settings that a variant has: ``training.oov_dropout``, ``bins``, pooling and dropout of histories."""

Results = Mapping[tuple[str, str], float]
"""Value by task and metric."""


def variant(config: Config, parts: Sequence[str]) -> Config:
    """Return the configuration with these parts, and without the others."""
    histories = {history.name for history in config.histories}
    features = []
    for feature in config.features:
        if isinstance(feature, NumericFeature) and "bins" not in parts:
            feature = feature.model_copy(update={"bins": 0})
        elif feature.name in histories and "histories" not in parts:
            feature = feature.model_copy(update={"pooling": "mean"})
        features.append(feature)
    off = {} if "oov_dropout" in parts else {"oov_dropout": 0.0}
    off |= {} if "histories" in parts else {"history_dropout": 0.0}
    training = config.training.model_copy(update=off)
    return config.model_copy(update={"features": tuple(features), "training": training})


def results(config: Config, folder: Path, seed: int) -> Results:
    """Train a configuration and return its metrics on the validation split."""
    (scorer,) = run_scorers(trained(config, folder, seed))
    predictions = scored(scorer, config, "validation")
    metrics = measured(predictions, UnitDraws(predictions.units, 0), config)
    return {
        (task.name, metric): float(metrics[task.name][metric][0])
        for task in config.tasks
        for metric in METRICS[task.kind]
    }


def main() -> None:
    """Train, score and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="ranker.toml")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error("--seeds must be at least 2, for the standard error of a mean")
    config = load_config(arguments.config)
    variants = {"none": (), **{part: (part,) for part in PARTS}, "all": PARTS}
    values = {
        name: [results(variant(config, parts), arguments.work / f"{name}-{s}", s) for s in range(arguments.seeds)]
        for name, parts in variants.items()
    }
    print(f"| task | metric | {' | '.join(variants)} |\n|---|---|{'---|' * len(variants)}")
    for key in values["none"][0]:
        cells = [f"{np.mean([seed[key] for seed in values['none']]):.4f}"]
        for name in list(variants)[1:]:
            differences = [b[key] - a[key] for a, b in zip(values["none"], values[name], strict=True)]
            mean, error = mean_and_error(differences)
            cells.append(f"{mean:+.4f} ± {error:.4f}")
        print(f"| {key[0]} | {key[1]} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
