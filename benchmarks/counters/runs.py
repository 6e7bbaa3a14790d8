"""Runs that are trained once per work folder, and their predictions on a split."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipelines.config.config import Config
from pipelines.data.splits import split_range
from pipelines.evaluation.predict import predict
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.sources import Scorer
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder


def trained(config: Config, folder: Path, seed: int) -> RunFolder:
    """Return the run of a configuration with a seed; train it if it is not finished."""
    training = config.training.model_copy(update={"seed": seed})
    config = config.model_copy(update={"training": training})
    return train(config, folder, resume=folder.exists())


def scored(scorer: Scorer, config: Config, split: str) -> Predictions:
    """Return the predictions of a model on one split of the log."""
    return predict(scorer, replace(scorer.log_range(None), time_range=split_range(config.logs, split)))
