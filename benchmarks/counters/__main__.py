"""Quality of counters and histories: the ranker and LightGBM, each with and without them.

Trains each with several seeds and compares them on the same rows of one split. Choose settings on the validation split
and read the test split once, at the end. Finished runs and models in the work folder are used again. LightGBM uses one
thread: its result depends on the seed only. With ``--by-day``, the counters and histories of the configuration lose
their delay, so that all of them are as of midnight.

    python -m benchmarks.counters kr/ranker.toml --work WORK --split test
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.counters.boosting import boosted_scorers
from benchmarks.counters.metrics import by_day, mean, measured, table, without_counters
from benchmarks.counters.runs import scored, trained
from pipelines.config.config import load_config
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.sources import run_scorers
from ranking.metrics import UnitDraws

WITHOUT, WITH, BY_DAY = "without counters", "with counters", "with counters by day"
TREES = "LightGBM"


def main() -> None:
    """Train, score and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="ranker.toml with [[counters]]")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs and models")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--by-day", action="store_true", help="remove the delay of all counters and histories")
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    counted = BY_DAY if arguments.by_day else WITH
    if arguments.by_day:
        config = by_day(config)
    predictions: dict[str, list[Predictions]] = {}
    for label, model_config in {WITHOUT: without_counters(config), counted: config}.items():
        folder = label.replace(" ", "-")
        runs = [trained(model_config, arguments.work / f"{folder}-{seed}", seed) for seed in range(arguments.seeds)]
        rankers = [scorer for run in runs for scorer in run_scorers(run)]
        trees = boosted_scorers(runs[0], model_config, arguments.work / f"lightgbm-{folder}", arguments.seeds)
        for model, scorers in ((f"{TREES} {label}", trees), (f"ranker {label}", rankers)):
            predictions[model] = [scored(scorer, config, arguments.split) for scorer in scorers]
    first = next(iter(predictions.values()))[0]
    draws = UnitDraws(first.units, config.evaluation.bootstrap)
    results = {model: mean([measured(part, draws, config) for part in parts]) for model, parts in predictions.items()}
    differences = [(f"{model} {WITHOUT}", f"{model} {counted}") for model in (TREES, "ranker")]
    differences += [(f"ranker {label}", f"{TREES} {label}") for label in (WITHOUT, counted)]
    print(f"{len(first):,} rows of the {arguments.split} split, {arguments.seeds} seeds\n")
    print(table(results, config, len(np.unique(first.units.codes)), differences))


if __name__ == "__main__":
    main()
