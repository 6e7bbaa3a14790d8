"""Fit the baselines of a run on its training split."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipelines.config.config import BaselineName
from pipelines.console import print_status
from pipelines.counters.columns import joined_columns
from pipelines.data.reader import LogReader, as_log_error
from pipelines.data.splits import split_range
from pipelines.evaluation.baselines.means import MeansById
from pipelines.evaluation.baselines.tree_columns import TreeColumns
from pipelines.evaluation.sources import Scorer
from pipelines.training.labeled_batch import LabeledBatch
from ranking.encoding.batch import EncodedBatch, Float32
from ranking.encoding.row_sample import RowSample
from ranking.encoding.vocabulary import hash_column
from ranking.errors import LogError
from ranking.metrics import Array, Ids
from ranking.schema import Task

if TYPE_CHECKING:
    from scipy import sparse

    from pipelines.evaluation.baselines.linear import LinearColumns

SAMPLE_ROWS = 100_000
"""Maximum number of training rows that the linear model and LightGBM are fitted on, which bounds memory and time."""
INSTALL_LIGHTGBM = "lightgbm is not installed: pip install 'dselect-ranker[baselines]'"

FromFeatures = Callable[[EncodedBatch], Float32]
"""Predicts probabilities or numbers [rows] from encoded features. It can be pickled, for workers."""


@dataclass
class Baselines:
    """Fitted baselines of all tasks of a model.

    Attributes:
        tasks: the tasks.
        names: names of the baselines, in the order of the output.
        item_column: column of the item id.
        rows: number of training rows.
        sampled_rows: number of rows that the linear model and LightGBM were fitted on.
        overall: mean label of each task [tasks]; NaN without a label.
        users: means by user.
        items: means by item.
        models: linear models and LightGBM by baseline and task.
        omitted: why a baseline of a task is omitted, by baseline and task.
    """

    tasks: Sequence[Task]
    names: Sequence[BaselineName]
    item_column: str
    rows: int
    sampled_rows: int
    overall: Array
    users: MeansById
    items: MeansById
    models: dict[tuple[str, str], FromFeatures] = field(default_factory=dict)
    omitted: dict[tuple[str, str], str] = field(default_factory=dict)

    def predict(self, rows: pa.Table, batch: LabeledBatch) -> Float32:
        """Predict rows of a log: probabilities or numbers [rows, baselines, tasks], NaN where omitted.

        Args:
            rows: the rows with the item column.
            batch: the same rows, encoded.
        """
        items: Ids = hash_column(rows[self.item_column].combine_chunks())
        result = np.full((len(batch), len(self.names), len(self.tasks)), np.nan, np.float32)
        for position, name in enumerate(self.names):
            for i, task in enumerate(self.tasks):
                if (name, task.name) in self.omitted:
                    continue
                overall = float(self.overall[i])
                if name == "constant":
                    result[:, position, i] = overall
                elif name == "popularity":
                    result[:, position, i] = self.items.predict(items, i, overall)
                elif name == "user_mean":
                    result[:, position, i] = self.users.predict(batch.users, i, overall)
                else:
                    result[:, position, i] = self.models[name, task.name](batch.inputs)
        return result


def fit_baselines(source: Scorer) -> Baselines | str:
    """Fit the configured baselines of a model, or return why there are none.

    Args:
        source: a run, whose settings name the baselines.

    Returns:
        The baselines; or one sentence if the model has no training log.
    """
    logs, names = source.logs, source.settings.baselines
    if not names:
        return "evaluation.baselines is empty"
    if logs is None:
        return f"{source.name} is a bundle, which does not contain its training log; evaluate its run to get them"
    print_status(f"fitting the baselines {', '.join(names)} on the training split")
    schema = source.schema
    users, items = MeansById(len(schema.tasks)), MeansById(len(schema.tasks))
    sample, random = RowSample(SAMPLE_ROWS, LabeledBatch.concat, LabeledBatch.take), np.random.default_rng(0)
    sums, weights, rows = np.zeros(len(schema.tasks)), np.zeros(len(schema.tasks)), 0
    try:
        reader = LogReader(logs.path, schema, dict(source.tables), until=logs.test_until)
        with joined_columns(reader, schema, source.features) as joined:
            for chunk in reader.with_joined(joined).scan(split_range(logs, "train")):
                if not chunk.rows.num_rows:
                    continue
                with as_log_error(chunk.file):
                    batch = LabeledBatch.from_table(chunk.rows, source.encoder)
                rows += len(batch)
                sums += np.nansum(batch.labels * batch.weights[:, None], axis=0, dtype=np.float64)
                weights += (~np.isnan(batch.labels) * batch.weights[:, None]).sum(0, dtype=np.float64)
                users.add(batch.users, batch.labels, batch.weights)
                ids = hash_column(chunk.rows[schema.columns.item].combine_chunks())
                items.add(ids, batch.labels, batch.weights)
                sample.add(random.random(len(batch)), batch.take)
    except LogError as error:
        return f"the training log cannot be read ({error})"
    if (sampled := sample.rows()) is None:
        return "the training split of the log has no usable row"
    overall = np.where(weights > 0, sums / np.where(weights > 0, weights, 1), np.nan)
    baselines = Baselines(schema.tasks, names, schema.columns.item, rows, len(sampled), overall, users, items)
    for i, task in enumerate(schema.tasks):
        if np.isnan(overall[i]):
            baselines.omitted |= {(name, task.name): "no training row has a label" for name in names}
    if not len(users):
        baselines.omitted |= {("user_mean", task.name): "no training row has a user id" for task in schema.tasks}
    if "linear" in names:
        _fit_linear(baselines, source, sampled)
    if "lightgbm" in names:
        _fit_lightgbm(baselines, source, sampled)
    return baselines


def _fit_linear(baselines: Baselines, source: Scorer, sample: LabeledBatch) -> None:
    """Fit a linear model of each task."""
    from pipelines.evaluation.baselines.linear import LinearColumns, fit_linear  # requires scikit-learn

    columns = LinearColumns(source.encoder, sample.inputs)
    matrix = columns.matrix(sample.inputs)
    for i, task in enumerate(baselines.tasks):
        if (chosen := _learnable_rows(baselines, "linear", i, sample)) is not None:
            model = fit_linear(task, matrix[chosen], sample.labels[chosen, i], sample.weights[chosen])
            baselines.models["linear", task.name] = partial(_predict_linear, model, columns)


def _fit_lightgbm(baselines: Baselines, source: Scorer, sample: LabeledBatch) -> None:
    """Fit LightGBM on each task, if it is installed."""
    if importlib.util.find_spec("lightgbm") is None:
        baselines.omitted |= {("lightgbm", task.name): INSTALL_LIGHTGBM for task in baselines.tasks}
        return
    from pipelines.evaluation.baselines.boosting import MAX_IDS, fit_boosting

    columns = TreeColumns.of(source.encoder)
    kept = columns.up_to(MAX_IDS)
    if not kept:
        reason = f"every feature is categorical with more than {MAX_IDS:,} ids"
        baselines.omitted |= {("lightgbm", task.name): reason for task in baselines.tasks}
        return
    matrix = columns.matrix(sample.inputs)[:, kept]
    categorical = [i for i, column in enumerate(kept) if columns.sizes[column]]
    for i, task in enumerate(baselines.tasks):
        if (chosen := _learnable_rows(baselines, "lightgbm", i, sample)) is not None:
            labels, weights = sample.labels[chosen, i], sample.weights[chosen]
            model = fit_boosting(task, matrix[chosen], categorical, labels, weights)
            baselines.models["lightgbm", task.name] = partial(_predict_boosting, model, columns, kept)


def _predict_linear(
    model: Callable[[sparse.csr_matrix], Float32], columns: LinearColumns, inputs: EncodedBatch
) -> Float32:
    return model(columns.matrix(inputs))


def _predict_boosting(
    model: Callable[[Float32], Float32], columns: TreeColumns, kept: list[int], inputs: EncodedBatch
) -> Float32:
    return model(columns.matrix(inputs)[:, kept])


def _learnable_rows(baselines: Baselines, name: str, task: int, sample: LabeledBatch) -> Ids | None:
    """Return the sampled rows with a label and a weight; None, with the reason recorded, if a class is absent."""
    chosen = np.flatnonzero(~np.isnan(sample.labels[:, task]) & (sample.weights > 0))
    definition, labels = baselines.tasks[task], sample.labels[chosen, task]
    if not len(chosen) or (definition.kind == "binary" and labels.min() == labels.max()):
        reason = f"the {len(sample):,} sampled training rows do not have both classes"
        if definition.kind == "regression":
            reason = f"the {len(sample):,} sampled training rows have no label"
        baselines.omitted.setdefault((name, definition.name), reason)
        return None
    return chosen
