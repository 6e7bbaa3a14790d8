"""Sizes of the model and the training for a number of rows."""

from __future__ import annotations

from dataclasses import dataclass

WANTED_STEPS = 500
"""Training steps for which the batch size is chosen: gates need a few hundred to converge."""
SMALLEST_BATCH, LARGEST_BATCH = 16, 4096
MAX_EPOCHS = 20
"""Maximum number of epochs: on tiny logs, more of them only memorize the rows."""
SMALL_ROWS = 20_000
"""Below this number of training rows the model is smaller."""


@dataclass(frozen=True)
class TrainingSizes:
    """Sizes of a training.

    Attributes:
        batch_size: rows per step.
        epochs: passes over the training split.
        steps: resulting number of steps.
        small: whether the model is smaller than the default.
    """

    batch_size: int
    epochs: int
    steps: int
    small: bool


def choose_sizes(rows: int) -> TrainingSizes:
    """Return sizes for this number of training rows."""
    batch_size = SMALLEST_BATCH
    while batch_size < LARGEST_BATCH and rows // (2 * batch_size) >= WANTED_STEPS:
        batch_size *= 2
    per_epoch = max(1, rows // batch_size)
    epochs = min(MAX_EPOCHS, max(1, -(-WANTED_STEPS // per_epoch)))
    if rows > SMALL_ROWS:
        epochs = 1  # ids overfit in the second pass
    return TrainingSizes(batch_size, epochs, per_epoch * epochs, rows <= SMALL_ROWS)
