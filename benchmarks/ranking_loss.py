"""Quality of the ranking loss: the ranker without and with it, beside LightGBM trained on rows and on the order.

Trains each with several seeds on the same features and compares them on the same rows of one split. Choose the weight
on the validation split and read the test split once, at the end. Finished runs and models in the work folder are used
again.

    python -m benchmarks.ranking_loss kr/ranker.toml --work WORK --split test
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.counters.boosting import LAMBDARANK, POINTWISE, boosted_scorers
from benchmarks.counters.metrics import mean, measured, table
from benchmarks.counters.runs import scored, trained
from pipelines.config.config import Config, RankingLossConfig, load_config
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.sources import run_scorers
from ranking.metrics import UnitDraws

OFF, ON, TREES, RANKED_TREES = "off", "on", "LightGBM binary", "LightGBM lambdarank"


def with_ranking_loss(config: Config, weight: float | None) -> Config:
    """Return the configuration with a ranking loss within the day of a user, or without one."""
    ranking_loss = None if weight is None else RankingLossConfig(weight=weight)
    training = config.training.model_copy(update={"ranking_loss": ranking_loss})
    return config.model_copy(update={"training": training})


def main() -> None:
    """Train, score and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="ranker.toml")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs and models")
    parser.add_argument("--weight", type=float, default=RankingLossConfig().weight, help="weight of the ranking loss")
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    config, work, seeds = load_config(arguments.config), arguments.work, arguments.seeds
    predictions: dict[str, list[Predictions]] = {}
    runs = {}
    for label, weight in {OFF: None, ON: arguments.weight}.items():
        name = label if weight is None else f"weight-{weight:g}"
        runs[label] = [
            trained(with_ranking_loss(config, weight), work / f"{name}-{seed}", seed) for seed in range(seeds)
        ]
        scorers = [scorer for run in runs[label] for scorer in run_scorers(run)]
        predictions[label] = [scored(scorer, config, arguments.split) for scorer in scorers]
    for label, objectives in {TREES: POINTWISE, RANKED_TREES: LAMBDARANK}.items():
        folder = work / label.lower().replace(" ", "-")
        trees = boosted_scorers(runs[OFF][0], config, folder, seeds, objectives)
        predictions[label] = [scored(scorer, config, arguments.split) for scorer in trees]
    first = predictions[OFF][0]
    draws = UnitDraws(first.units, config.evaluation.bootstrap)
    results = {model: mean([measured(part, draws, config) for part in parts]) for model, parts in predictions.items()}
    differences = [(OFF, ON), (TREES, ON), (TREES, OFF), (RANKED_TREES, ON)]
    print(f"{len(first):,} rows of the {arguments.split} split, {seeds} seeds, weight {arguments.weight:g}\n")
    print(table(results, config, len(np.unique(first.units.codes)), differences))


if __name__ == "__main__":
    main()
