"""Fits the calibration of a trained model on its validation split, with scikit-learn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from pipelines.console import print_status
from pipelines.runs.run import RunFolder
from pipelines.training.labeled_batch import LabeledBatch
from ranking.artifacts.atomic_files import write_json
from ranking.encoding.torch_batch import TorchBatch
from ranking.frozen.calibration import Calibration, Isotonic, Platt
from ranking.metrics import Array
from ranking.model.mmoe import MMoE
from ranking.schema import Task

FEWEST_FOR_PLATT = 10
"""Rows of the rarer class that two numbers can be fitted to."""
FEWEST_FOR_ISOTONIC = 100
"""The same for a curve, which follows the noise of fewer."""

SAME_RATE = 1e-9
"""Steps that differ by less are one: rounding tells them apart, not the rows."""
FEWEST_IN_A_STEP = 10
"""Rows of each class that one step of the curve is made of."""


@torch.no_grad()
def calibrate(run: RunFolder, model: MMoE, tasks: Sequence[Task], validation: Iterable[LabeledBatch]) -> None:
    """Writes ``calibration.json`` into the run folder, if a task asks for it.

    Args:
        run: the run.
        model: its best weights, in eval mode.
        tasks: in the order of the model's outputs.
        validation: every example of the validation split.

    Raises:
        OutputError: the file cannot be written.
    """
    if all(task.calibration == "none" for task in tasks):
        return
    parts = [(model(TorchBatch.from_numpy(examples.inputs)).numpy(), examples.labels) for examples in validation]
    logits, labels = (np.concatenate(column).astype(np.float64) for column in zip(*parts, strict=True))
    found = {}
    for i, task in enumerate(tasks):
        known = ~np.isnan(labels[:, i])
        fitted = fit(task, logits[known, i], labels[known, i])
        if fitted is not None:
            found[task.name] = fitted
    write_json(Calibration(found).to_json(), run.calibration)


def fit(task: Task, logits: Array, labels: Array) -> Platt | Isotonic | None:
    """The map that a task asks for; says so on stderr where too few rows make it a simpler one, or none.

    Args:
        task: with its ``calibration``.
        logits: of the model [rows].
        labels: 0 or 1 [rows].
    """
    if task.calibration == "none":
        return None
    rarer = int(min(labels.sum(), len(labels) - labels.sum()))
    seen = f"task '{task.name}': the validation split has {rarer} rows of its rarer class"
    if rarer < FEWEST_FOR_PLATT:
        print_status(f"{seen}, calibration needs {FEWEST_FOR_PLATT}: left uncalibrated")
        return None
    if task.calibration == "isotonic" and rarer >= FEWEST_FOR_ISOTONIC:
        return isotonic(logits, labels)
    if task.calibration == "isotonic":
        print_status(f"{seen}, isotonic calibration needs {FEWEST_FOR_ISOTONIC}: calibrated by Platt's method")
    found = platt(logits, labels)
    if found is None:
        print_status(
            f"task '{task.name}': its scores do not rise with the label in the validation split: left uncalibrated"
        )
    return found


def platt(logits: Array, labels: Array) -> Platt | None:
    """Maximum likelihood of slope and shift under Platt's targets, which stay away from 0 and 1 (1999, section 2.2).

    None if the slope is not positive.
    """
    from sklearn.linear_model import LogisticRegression  # a second of every start, and most trainings calibrate nothing

    positives = labels.sum()
    target = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (len(labels) - positives + 2))
    twice = np.concatenate([logits, logits]).reshape(-1, 1)  # a target between 0 and 1 is a row of each class, weighted
    model = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10)
    model.fit(twice, np.repeat([1, 0], len(labels)), sample_weight=np.concatenate([target, 1 - target]))
    slope, shift = float(model.coef_[0, 0]), float(model.intercept_[0])
    return Platt(slope=slope, shift=shift) if slope > 0 else None


def isotonic(logits: Array, labels: Array) -> Isotonic:
    """Isotonic regression, each of its steps as one knot: (mean logit of the step's rows, logit of its rate).

    Neighbouring steps are joined until each has FEWEST_IN_A_STEP rows of both classes: the rate of fewer is noise, and
    that of one class alone has no logit. Joined steps still rise.

    Args:
        logits: [rows].
        labels: 0 or 1 [rows], FEWEST_IN_A_STEP of each at least.
    """
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression().fit_transform(logits, labels)
    order = np.argsort(logits, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(fitted[order]) > SAME_RATE))
    sizes = np.diff(np.append(starts, len(order)))
    steps = np.stack([sizes, *(np.add.reduceat(column[order], starts) for column in (labels, logits))], axis=1)
    joined, held = [], np.zeros(3)
    for step in steps:
        held = held + step
        if min(held[1], held[0] - held[1]) >= FEWEST_IN_A_STEP:
            joined.append(held)
            held = np.zeros(3)
    joined[-1] = joined[-1] + held
    rows, positives, total = np.stack(joined, axis=1)
    return Isotonic(
        inputs=tuple((total / rows).tolist()), outputs=tuple(np.log(positives / (rows - positives)).tolist())
    )
