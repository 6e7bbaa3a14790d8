"""Two runs or bundles on the same rows: the differences of their measures, with paired intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pipelines.config.config import EvaluationConfig
from pipelines.config.uri import Uri
from pipelines.console import log
from pipelines.evaluation.evaluate import RAISED_BY_NOISE, flatten_metrics
from pipelines.evaluation.predict import FILE, Predictions, predict
from pipelines.evaluation.sources import Scorer
from ranking.errors import LogError, UsageError
from ranking.metrics import Array, UserDraws, interval
from ranking.schema import Task

LABEL = {"kind", "label", "transform", "mask"}
"""What two tasks of one name must agree on to be the same."""
DECIMALS = 6
"""Of differences: what is smaller is rounding, as between a run in float32 and its bundle."""
LOWER_IS_BETTER = {
    **dict.fromkeys(("auc", "gauc", "ndcg"), False),
    **dict.fromkeys(("logloss", "normalised_entropy", "calibration_error", "rmse", "mae"), True),
}
"""Measures that say which of two is better; ``calibration`` does not."""


def compare(a: Iterable[Scorer], b: Iterable[Scorer], logs: Uri | None = None) -> dict[str, Any]:
    """Measures A and B on the rows that both can use, by A's settings.

    Args:
        a: one model, or those of the single-task baseline.
        b: the same.
        logs: a whole log; default: A's test split, or B's if A is a bundle.

    Returns:
        ``rows``, ``ndcg_at``, and ``tasks``: task → ``rows`` and ``measures``: measure → ``a``, ``b``, ``difference``
        (B − A), ``interval`` (its 95 % interval) and ``better`` ("a" or "b"; None where the interval holds 0).

    Raises:
        UsageError: they share no task, or call different labels by one name.
        LogError: a log cannot be used, or no row is left.
    """
    a, b = list(a), list(b)
    names = _shared_tasks(a, b)
    settings = a[0].settings
    span = (a[0] if a[0].logs is not None else b[0]).span(logs)
    tasks: dict[str, Any] = {}
    predicted: dict[str, Predictions] = {}
    for one, other in ((one, other) for one in a for other in b):
        shared = [name for name in one.schema.task_names if name in other.schema.task_names]
        if shared:
            predicted = {
                source.name: predicted.get(source.name) or predict(source, span) for source in (one, other)
            }  # the last pair only, so that no more than two lie in memory
            tasks |= _compared(shared, *_aligned(predicted[one.name], predicted[other.name]), settings)
    rows = max(found["rows"] for found in tasks.values())
    return {"rows": rows, "ndcg_at": settings.ndcg_at, "tasks": {name: tasks[name] for name in names}}


def _shared_tasks(a: Sequence[Scorer], b: Sequence[Scorer]) -> list[str]:
    """Names of the tasks that both have, in A's order."""
    of_a, of_b = ({task.name: task for source in side for task in source.schema.tasks} for side in (a, b))
    shared = [name for name in of_a if name in of_b]
    if not shared:
        raise UsageError(f"they share no task: A has {', '.join(of_a)}, B has {', '.join(of_b)}")
    for name in shared:
        mine, other = (side[name].model_dump(include=LABEL) for side in (of_a, of_b))
        for key, value in mine.items():
            if value != other[key]:
                raise UsageError(
                    f"task '{name}' is not the same in both: {key} is {value!r} in A, {other[key]!r} in B; "
                    "compare models of the same label"
                )
    return shared


def _aligned(a: Predictions, b: Predictions) -> tuple[Predictions, Predictions]:
    """The rows that both have, in one order; users and requests are A's."""
    numbers = {file: number for number, file in enumerate((*a.files, *(f for f in b.files if f not in a.files)))}
    renumbered = np.array([numbers[file] for file in b.files])[b.places // FILE] * FILE + b.places % FILE
    places, of_a, of_b = np.intersect1d(a.places, renumbered, assume_unique=True, return_indices=True)
    if not len(places):
        raise LogError("no row is left that both can use")
    alone = len(a) + len(b) - 2 * len(places)
    if alone:
        log(f"{alone:,} rows that only one of the two can use are left out")
    mine = a.take(of_a)
    return mine, replace(b.take(of_b), users=mine.users, requests=mine.requests)


def _compared(names: list[str], a: Predictions, b: Predictions, settings: EvaluationConfig) -> dict[str, Any]:
    """Both on aligned rows, under the same draws of users."""
    draws = UserDraws(a.users, settings.bootstrap)
    found = {}
    for name in names:
        i, j = (next(t for t, task in enumerate(side.tasks) if task.name == name) for side in (a, b))
        known = a.known(i) & b.known(j)
        if not known.any():
            found[name] = {"rows": 0, "measures": {}}
            continue
        of_a, of_b = (side.rows(t, draws.users, known) for side, t in ((a, i), (b, j)))
        task: Task = a.tasks[i]
        values = zip(
            flatten_metrics(task, of_a, draws, settings).items(),
            flatten_metrics(task, of_b, draws, settings).values(),
            strict=True,
        )
        measures = {measure: difference(measure, mine, other) for (measure, mine), other in values}
        found[name] = {"rows": int(known.sum()), "measures": measures}
    return found


def difference(measure: str, a: Array, b: Array) -> dict[str, Any]:
    """B − A with its interval.

    Args:
        measure: its name.
        a: in the data and in each draw [1 + B].
        b: the same, under the same draws.
    """
    differences = np.round(b - a, DECIMALS)
    between = interval(differences, reflected=measure in RAISED_BY_NOISE)
    better = None
    if between is not None and not between[0] <= 0 <= between[1] and measure in LOWER_IS_BETTER:
        better = "b" if (between[1] < 0) == LOWER_IS_BETTER[measure] else "a"
    values = {"a": a[0], "b": b[0], "difference": differences[0]}
    return {
        **{name: None if np.isnan(value) else float(value) for name, value in values.items()},
        "interval": None if between is None else list(between),
        "better": better,
    }
