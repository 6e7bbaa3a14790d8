"""Fit the calibration of a trained model on its validation split, with scikit-learn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from pipelines.console import print_status
from pipelines.runs.run import RunFolder
from pipelines.training.labeled_batch import LabeledBatch
from ranking.artifacts.atomic_files import write_json
from ranking.encoding.torch_batch import TorchBatch
from ranking.frozen.calibration import Calibration, Floats, Isotonic, Platt
from ranking.metrics import Array
from ranking.model.mmoe import MMoE
from ranking.schema import Task

MIN_PLATT_ROWS = 10
"""Minimum number of rows of the rarer class for Platt scaling, which has two parameters."""
MIN_ISOTONIC_ROWS = 100
"""Minimum number of rows of the rarer class for isotonic regression, which fits the noise of smaller samples."""

RATE_TOLERANCE = 1e-9
"""Fitted rates that differ by less belong to one step: the difference is a rounding error."""
MIN_STEP_ROWS = 10
"""Minimum number of rows of each class in one step of the isotonic curve."""


@torch.no_grad()
def calibrate(
    run: RunFolder,
    model: MMoE,
    tasks: Sequence[Task],
    validation: Iterable[LabeledBatch],
    earlier: Calibration,
) -> None:
    """Write ``calibration.json`` to the run folder if any task asks for calibration.

    Args:
        run: the run folder.
        model: the best weights, in eval mode.
        tasks: the tasks, in the order of the model's outputs.
        validation: all batches of the validation split.
        earlier: calibration of the run that a warm start started from, or none; a task that cannot be calibrated
            keeps it.

    Raises:
        OutputError: the file cannot be written.
    """
    if all(task.calibration == "none" for task in tasks):
        return
    outputs = ((model(TorchBatch.from_numpy(batch.inputs)).numpy(), batch.labels) for batch in validation)
    write_json(fit_calibration(tasks, outputs, earlier).to_json(), run.calibration)


def fit_calibration(
    tasks: Sequence[Task], outputs: Iterable[tuple[Floats, Floats]], earlier: Calibration
) -> Calibration:
    """Fit the calibration of each task that asks for it.

    Args:
        tasks: the tasks, in the order of the outputs.
        outputs: outputs and labels [rows, tasks] of batches of the validation split.
        earlier: calibration that a task keeps which cannot be calibrated.
    """
    logits, labels = (np.concatenate(arrays).astype(np.float64) for arrays in zip(*outputs, strict=True))
    maps = {}
    for i, task in enumerate(tasks):
        labeled = ~np.isnan(labels[:, i])
        fitted = fit_task(task, logits[labeled, i], labels[labeled, i])
        if fitted is None and task.calibration != "none" and task.name in earlier.tasks:
            print_status(f"task '{task.name}': keeps the calibration of the earlier run")
            fitted = earlier.tasks[task.name]
        if fitted is not None:
            maps[task.name] = fitted
    return Calibration(maps)


def fit_task(task: Task, logits: Array, labels: Array) -> Platt | Isotonic | None:
    """Fit the calibration method of a task.

    With too few rows, fall back to a simpler method or to none, and log it.

    Args:
        task: the task, with its ``calibration``.
        logits: logits of the model [rows].
        labels: 0 or 1 [rows].
    """
    if task.calibration == "none":
        return None
    rarer = int(min(labels.sum(), len(labels) - labels.sum()))
    sample = f"task '{task.name}': the validation split has {rarer} rows of the rarer class"
    if rarer < MIN_PLATT_ROWS:
        print_status(f"{sample}, calibration needs {MIN_PLATT_ROWS}: not calibrated")
        return None
    if task.calibration == "isotonic" and rarer >= MIN_ISOTONIC_ROWS:
        return fit_isotonic(logits, labels)
    if task.calibration == "isotonic":
        print_status(f"{sample}, isotonic calibration needs {MIN_ISOTONIC_ROWS}: calibrated with Platt scaling instead")
    platt = fit_platt(logits, labels)
    if platt is None:
        print_status(
            f"task '{task.name}': scores do not increase with the label in the validation split: not calibrated"
        )
    return platt


def fit_platt(logits: Array, labels: Array) -> Platt | None:
    """Fit slope and shift by maximum likelihood with Platt's smoothed targets (Platt 1999, section 2.2).

    Args:
        logits: [rows].
        labels: 0 or 1 [rows].

    Returns:
        None if the fitted slope is not positive.
    """
    from sklearn.linear_model import LogisticRegression  # lazy: the import takes about a second

    positives = labels.sum()
    target = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (len(labels) - positives + 2))
    # A target between 0 and 1 is equivalent to one weighted row of each class.
    doubled = np.concatenate([logits, logits]).reshape(-1, 1)
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10)
    model.fit(doubled, np.repeat([1, 0], len(labels)), sample_weight=np.concatenate([target, 1 - target]))
    slope, shift = float(model.coef_[0, 0]), float(model.intercept_[0])
    return Platt(slope=slope, shift=shift) if slope > 0 else None


def fit_isotonic(logits: Array, labels: Array) -> Isotonic:
    """Fit isotonic regression, with one knot per step: (mean logit of its rows, logit of its rate).

    Adjacent steps are merged until each has ``MIN_STEP_ROWS`` rows of both classes. The rate of a smaller step is
    noise, and a step of one class has no finite logit. The merged rates still increase.

    Args:
        logits: [rows].
        labels: 0 or 1 [rows], at least ``MIN_STEP_ROWS`` of each.
    """
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression().fit_transform(logits, labels)
    order = np.argsort(logits, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(fitted[order]) > RATE_TOLERANCE))
    sizes = np.diff(np.append(starts, len(order)))
    steps = np.stack([sizes, *(np.add.reduceat(column[order], starts) for column in (labels, logits))], axis=1)
    merged, pending = [], np.zeros(3)  # columns: rows, positives, sum of logits
    for step in steps:
        pending = pending + step
        if min(pending[1], pending[0] - pending[1]) >= MIN_STEP_ROWS:
            merged.append(pending)
            pending = np.zeros(3)
    merged[-1] = merged[-1] + pending
    rows, positives, total = np.stack(merged, axis=1)
    return Isotonic(
        inputs=tuple((total / rows).tolist()), outputs=tuple(np.log(positives / (rows - positives)).tolist())
    )
