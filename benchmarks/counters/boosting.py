"""LightGBM on the features of a run: one model per task, on the same rows and with the same encoder.

LightGBM stops at the best validation metric. Its settings are those of ``GRID`` with the best one, chosen for each task
with seed 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import lightgbm as lgb
import numpy as np
import torch
from torch import Tensor

from pipelines.config.config import Config
from pipelines.console import print_status
from pipelines.counters.columns import joined_columns
from pipelines.data.reader import LogReader
from pipelines.evaluation.baselines.tree_columns import TreeColumns
from pipelines.evaluation.sources import Scorer, run_scorers
from pipelines.runs.run import RunFolder
from pipelines.training.labeled_batch import LabeledBatch, read_split
from ranking.artifacts.atomic_files import write_json
from ranking.encoding.batch import EncodedBatch, Float32, Int64
from ranking.frozen.calibration import Calibration
from ranking.schema import Task

GRID: Mapping[str, tuple[int, ...]] = {
    "num_leaves": (7, 31),
    "min_data_in_leaf": (50, 500),
    "max_ids": (1_000, 1_000_000_000),
}
"""Settings to choose from. ``max_ids``: ids above which a categorical column is left out, because trees overfit it."""
FIXED = {
    "learning_rate": 0.1,
    "feature_fraction": 0.8,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "deterministic": True,
    "force_col_wise": True,
    "num_threads": 1,
    "feature_pre_filter": False,
    "verbosity": -1,
}
"""Parameters that all models share. ``feature_pre_filter`` is off because ``min_data_in_leaf`` differs between them."""
POINTWISE = {"binary": ("binary", "binary_logloss"), "regression": ("regression", "l2")}
"""Objective and validation metric of each kind of task."""
LAMBDARANK = POINTWISE | {"binary": ("lambdarank", "ndcg")}
"""The same for the order within a user's day (Burges 2010, "From RankNet to LambdaRank to LambdaMART")."""
RISING = ("ndcg",)
"""Metrics that rise as models get better."""
MAX_ROUNDS, PATIENCE = 2_000, 30
CHOICES = "choices.json"

Objectives = Mapping[str, tuple[str, str]]
"""Objective and validation metric by kind of task."""
Setting = Mapping[str, int]
"""One value for each entry of ``GRID``."""


@dataclass(frozen=True)
class Split:
    """Rows of one split, sorted by user and day.

    Attributes:
        matrix: features [rows, columns].
        labels: labels [rows, tasks], NaN where masked.
        weights: sample weights [rows].
        sizes: rows of each user and day.
    """

    matrix: Float32
    labels: Float32
    weights: Float32
    sizes: Int64

    @classmethod
    def of(cls, batch: LabeledBatch, columns: TreeColumns) -> Split:
        """Convert encoded rows, which have groups."""
        assert batch.groups is not None
        _, sizes = np.unique(batch.groups, return_counts=True)
        batch = batch.take(np.argsort(batch.groups, kind="stable"))
        return cls(columns.matrix(batch.inputs), batch.labels, batch.weights, sizes)


@dataclass(frozen=True)
class TreeData:
    """Training and validation rows of a run."""

    columns: TreeColumns
    train: Split
    validation: Split

    def datasets(self, max_ids: int) -> tuple[lgb.Dataset, lgb.Dataset]:
        """Return both splits in the format of LightGBM, without the categorical columns of more ids."""
        kept = self.columns.up_to(max_ids)
        categories = [i for i, column in enumerate(kept) if self.columns.sizes[column]]
        train = lgb.Dataset(
            self.train.matrix[:, kept], categorical_feature=categories, params=FIXED, free_raw_data=False
        )
        return train, train.create_valid(self.validation.matrix[:, kept], params=FIXED)


def read_data(run: RunFolder, config: Config) -> TreeData:
    """Encode the training and validation rows of a run as the run did."""
    (scorer,) = run_scorers(run)
    columns = TreeColumns.of(scorer.encoder)
    reader = LogReader(config.logs.path, scorer.schema, dict(scorer.tables))
    splits = []
    with joined_columns(reader, scorer.schema, scorer.features) as joined:
        for split in ("train", "validation"):
            rows = read_split(reader.with_joined(joined), config.logs, scorer.encoder, split, "user_day")
            splits.append(Split.of(LabeledBatch.concat(list(rows)), columns))
    return TreeData(columns, *splits)


def boosted_scorers(
    run: RunFolder, config: Config, folder: Path, seeds: int, objectives: Objectives = POINTWISE
) -> list[Scorer]:
    """Return the models of each seed with the encoder of a run; train them unless the folder has them."""
    if not ((folder / CHOICES).exists() and (folder / str(seeds - 1)).exists()):
        train_models(read_data(run, config), config.training_schema.tasks, folder, seeds, objectives)
    return [_scorer(run, folder, seed) for seed in range(seeds)]


def train_models(data: TreeData, tasks: Sequence[Task], folder: Path, seeds: int, objectives: Objectives) -> None:
    """Choose the settings of each task and train its model with each seed.

    Writes the models to ``SEED/TASK.txt``, then ``choices.json``: for each task the chosen settings, and each setting
    with its rounds and validation loss (of a metric that rises, its negative).
    """
    settings = [dict(zip(GRID, values, strict=True)) for values in product(*GRID.values())]
    datasets = {max_ids: data.datasets(max_ids) for max_ids in GRID["max_ids"]}
    choices = {}
    for i, task in enumerate(tasks):

        def fit(setting: Setting, seed: int, i: int = i, task: Task = task) -> lgb.Booster:
            return _fit(data, datasets[setting["max_ids"]], i, objectives[task.kind], setting, seed)

        models = [fit(setting, 0) for setting in settings]
        losses = [_loss(model) for model in models]
        best = int(np.argmin(losses))
        for seed in range(seeds):
            model = models[best] if seed == 0 else fit(settings[best], seed)
            (folder / str(seed)).mkdir(parents=True, exist_ok=True)
            model.save_model(folder / str(seed) / f"{task.name}.txt")
        tried = [
            setting | {"rounds": model.best_iteration, "loss": loss}
            for setting, model, loss in zip(settings, models, losses, strict=True)
        ]
        choices[task.name] = {"choice": settings[best], "tried": tried}
        print_status(f"{folder}: {task.name}: {tried[best]}")
    write_json(choices, folder / CHOICES)


def _loss(model: lgb.Booster) -> float:
    """Return the lowest validation loss; of a metric that rises, the negative of the highest."""
    (metrics,) = model.best_score.values()
    ((name, value),) = metrics.items()
    return -float(value) if name.startswith(RISING) else float(value)


def _fit(
    data: TreeData,
    datasets: tuple[lgb.Dataset, lgb.Dataset],
    task_index: int,
    objective_and_metric: tuple[str, str],
    setting: Setting,
    seed: int,
) -> lgb.Booster:
    """Train the model of one task; masked rows have weight 0."""
    train, validation = datasets
    for split, dataset in ((data.train, train), (data.validation, validation)):
        labels = split.labels[:, task_index]
        dataset.construct()
        dataset.set_label(np.nan_to_num(labels))
        dataset.set_weight(np.where(np.isnan(labels), 0, split.weights))
        dataset.set_group(split.sizes)
    objective, metric = objective_and_metric
    tree = {name: setting[name] for name in ("num_leaves", "min_data_in_leaf")}
    parameters = {**FIXED, **tree, "objective": objective, "metric": metric, "eval_at": [10], "seed": seed}
    stop = lgb.early_stopping(PATIENCE, verbose=False)
    return lgb.train(parameters, train, MAX_ROUNDS, valid_sets=[validation], callbacks=[stop])


def _scorer(run: RunFolder, folder: Path, seed: int) -> Scorer:
    """Return the models of all tasks as one scorer with the encoder of a run."""
    (scorer,) = run_scorers(run)
    columns = TreeColumns.of(scorer.encoder)
    choices = json.loads((folder / CHOICES).read_text())
    models = []
    for task in scorer.schema.tasks:
        booster = lgb.Booster(model_file=folder / str(seed) / f"{task.name}.txt")
        models.append((booster, columns.up_to(choices[task.name]["choice"]["max_ids"])))

    def forward(inputs: EncodedBatch) -> tuple[Tensor, Tensor]:
        matrix = columns.matrix(inputs)
        outputs = [model.predict(matrix[:, kept], raw_score=True, num_threads=1) for model, kept in models]
        return torch.from_numpy(np.stack(outputs, axis=1)), torch.zeros(len(models), scorer.num_experts)

    return replace(scorer, name=str(folder / str(seed)), forward=forward, calibration=Calibration())
