"""Comparison of two runs or bundles on the same rows, with paired intervals of the differences."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pipelines.config.config import EvaluationConfig
from pipelines.config.uri import Uri
from pipelines.console import print_status
from pipelines.engines import Engine, kept_processes
from pipelines.evaluation.baselines.fit import Baselines, fit_baselines
from pipelines.evaluation.baselines.measure import measure_baselines
from pipelines.evaluation.differences import bootstrap_metrics, metric_difference
from pipelines.evaluation.predict import predict
from pipelines.evaluation.predictions import Predictions, with_file_numbers
from pipelines.evaluation.scored_rows import PredictBaselines
from pipelines.evaluation.sources import Scorer
from pipelines.evaluation.threads import results_of, thread_pool
from pipelines.runs.single_task import merge_baselines
from ranking.errors import LogError, UsageError
from ranking.metrics import UnitDraws, interval_units
from ranking.schema import Task
from ranking.schema.value_text import value_text

LABEL_FIELDS = {"kind", "label", "transform", "mask"}
"""Fields in which two tasks of the same name must agree to be comparable."""


@kept_processes()
def compare(
    a: Iterable[Scorer],
    b: Iterable[Scorer],
    logs: Uri | None = None,
    users: float | None = None,
    *,
    baselines: bool = False,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Compute the metrics of A and B on the rows that both can use, with the evaluation settings of A.

    Args:
        a: one model, or the models of a single-task run.
        b: the same for B.
        logs: a log to use as a whole; default: the test split of A, or of B if A is a bundle.
        users: share of the users to evaluate; default: that of both models' settings.
        baselines: whether to compare both with the baselines that A configures (B if A is a bundle).
        engine: scores the files of the log, see ``predict``.

    Returns:
        ``rows``, ``users`` (share of the users), ``intervals`` (the units that were drawn), ``ndcg_at`` and ``tasks``.
        Each task has ``rows``, ``measures`` and the number of ``positives`` or the ``label_deviation``. Each metric in
        ``measures`` has ``a``, ``b``, ``difference`` (B − A), ``interval`` (95 % interval of the difference) and
        ``better`` ("a" or "b"; None if the interval contains 0). ``baselines``, if requested, has ``a`` and ``b``, the
        entries ``baselines`` of the evaluations of both models on these rows.

    Raises:
        UsageError: A and B have no task in common, tasks of the same name have different labels, or ``users`` is None
            and the settings of A and B differ.
        LogError: the log cannot be used, or A and B have no usable row in common.
    """
    a, b = list(a), list(b)
    names = _shared_tasks(a, b)
    settings = a[0].settings
    shares = a[0].settings.users, b[0].settings.users
    if users is None and shares[0] != shares[1]:
        raise UsageError(
            f"evaluation.users is {shares[0]:g} for A and {shares[1]:g} for B: choose one share with --users"
        )
    users = shares[0] if users is None else users
    log_range = replace((a[0] if a[0].logs is not None else b[0]).log_range(logs), users=users)
    tasks: dict[str, Any] = {}
    units: list[dict[str, Any]] = []
    predictions: dict[str, Predictions] = {}
    fitted: dict[str, Baselines | str] = {}
    results: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    for model_a, model_b in itertools.product(a, b):
        shared = [name for name in model_a.schema.task_names if name in model_b.schema.task_names]
        if shared:
            owner = model_a if model_a.logs is not None else model_b
            if baselines:
                fitted = {owner.name: fitted.get(owner.name) or fit_baselines(owner)}
            predictions = {
                model.name: predictions.get(model.name)
                or predict(model, log_range, (), _predict_baselines(fitted.get(model.name)), engine)
                for model in (model_a, model_b)
            }  # only the current pair is kept, to bound the memory
            aligned = _align(predictions[model_a.name], predictions[model_b.name])
            draws = UnitDraws(aligned[0].units, settings.bootstrap)
            units.append(draws.to_json())
            tasks |= _compare_tasks(shared, *aligned, draws, settings)
            if baselines:
                shown = next((side.baselines for side in aligned if side.baselines is not None), None)
                for key, side in zip(results, aligned, strict=True):
                    entry = measure_baselines(replace(side, baselines=shown), fitted[owner.name], draws, settings)
                    results[key].append(entry)
    return {
        "rows": max(result["rows"] for result in tasks.values()),
        "users": users,
        "intervals": min(units, key=lambda entry: entry["units"]),
        "ndcg_at": settings.ndcg_at,
        "tasks": {name: tasks[name] for name in names},
        **({"baselines": {key: merge_baselines(entries) for key, entries in results.items()}} if baselines else {}),
    }


def _predict_baselines(fitted: Baselines | str | None) -> PredictBaselines | None:
    """Return the predictions of fitted baselines; None if there are none."""
    return fitted.predict if isinstance(fitted, Baselines) else None


def _shared_tasks(a: Sequence[Scorer], b: Sequence[Scorer]) -> list[str]:
    """Return the names of the tasks that A and B share, in the order of A."""
    tasks_a, tasks_b = ({task.name: task for model in models for task in model.schema.tasks} for models in (a, b))
    shared = [name for name in tasks_a if name in tasks_b]
    if not shared:
        raise UsageError(f"A and B have no task in common: A has {', '.join(tasks_a)}, B has {', '.join(tasks_b)}")
    for name in shared:
        fields_a, fields_b = (tasks[name].model_dump(include=LABEL_FIELDS) for tasks in (tasks_a, tasks_b))
        for key, value in fields_a.items():
            if value != fields_b[key]:
                raise UsageError(
                    f"task '{name}' differs between A and B: {key} is {value_text(value)} in A, "
                    f"{value_text(fields_b[key])} in B; "
                    "compare models with the same labels"
                )
    return shared


def _align(a: Predictions, b: Predictions) -> tuple[Predictions, Predictions]:
    """Return the rows that A and B share, in the same order, with the users, days and requests of A."""
    file_index = {file: i for i, file in enumerate((*a.files, *(f for f in b.files if f not in a.files)))}
    positions_b = with_file_numbers(b.positions, np.array([file_index[file] for file in b.files]))
    positions, rows_a, rows_b = np.intersect1d(a.positions, positions_b, assume_unique=True, return_indices=True)
    if not len(positions):
        raise LogError("A and B have no usable row in common")
    excluded = len(a) + len(b) - 2 * len(positions)
    if excluded:
        print_status(f"excluded {excluded:,} rows that only one of the two models can use")
    shared_a = a.take(rows_a)
    shared_b = replace(b.take(rows_b), users=shared_a.users, days=shared_a.days, requests=shared_a.requests)
    return shared_a, shared_b


def _compare_tasks(
    names: list[str], a: Predictions, b: Predictions, draws: UnitDraws, settings: EvaluationConfig
) -> dict[str, Any]:
    """Compare aligned predictions under the same bootstrap draws."""
    with thread_pool(len(a)) as pool:
        tasks = {name: pool.submit(_compare_task, name, a, b, draws, settings) for name in names}
    results: dict[str, Any] = results_of(tasks)
    return results


def _compare_task(
    name: str, a: Predictions, b: Predictions, draws: UnitDraws, settings: EvaluationConfig
) -> dict[str, Any]:
    i, j = (next(t for t, task in enumerate(model.tasks) if task.name == name) for model in (a, b))
    has_label = a.has_label(i) & b.has_label(j)
    if not has_label.any():
        return {"rows": 0, "measures": {}}
    task: Task = a.tasks[i]
    rows_a, rows_b = (model.task_rows(t, draws, has_label) for model, t in ((a, i), (b, j)))
    metrics_a, metrics_b = (bootstrap_metrics(task, rows, draws, settings) for rows in (rows_a, rows_b))
    units = interval_units(rows_a, binary=task.kind == "binary")
    metrics = {
        metric: metric_difference(metric, values, metrics_b[metric], units) for metric, values in metrics_a.items()
    }
    result: dict[str, Any] = {"rows": int(has_label.sum()), "measures": metrics}
    if task.kind == "binary":
        result["positives"] = int(rows_a.labels.sum())
    else:
        result["label_deviation"] = float(rows_a.labels.std())
    return result
