"""Calibrate probabilities with one increasing map from logit to logit per task.

Fitted by ``pipelines.training.calibration``; applied to the dense model in evaluation and in the frozen graph. Every
map is strictly increasing, so it does not change any order: AUC, GAUC and NDCG stay the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveFloat, TypeAdapter, model_validator

from ranking.schema import ListOf, StrictModel, Task

Floats = npt.NDArray[np.floating[Any]]


class Platt(StrictModel):
    """slope · logit + shift (Platt 1999, section 2.1)."""

    kind: Literal["platt"] = "platt"
    slope: PositiveFloat
    shift: float

    def __call__(self, logits: Floats) -> Floats:
        """Return calibrated logits of the same shape."""
        return logits * self.slope + self.shift


class Isotonic(StrictModel):
    """Linear interpolation between knots (logit, calibrated logit), with slope 1 beyond the first and last knot.

    Interpolation replaces the steps of isotonic regression, so that distinct scores stay distinct: centered isotonic
    regression (Oron and Flournoy 2017, section 2.2).
    """

    kind: Literal["isotonic"] = "isotonic"
    inputs: Annotated[ListOf[float], Field(min_length=1)]
    outputs: ListOf[float]

    @model_validator(mode="after")
    def _knots_increase(self) -> Self:
        if len(self.inputs) != len(self.outputs):
            raise ValueError(f"{len(self.inputs)} inputs, but {len(self.outputs)} outputs")
        for name, knots in (("inputs", self.inputs), ("outputs", self.outputs)):
            if any(left >= right for left, right in itertools.pairwise(knots)):
                raise ValueError(f"{name} must increase from knot to knot")
        return self

    def __call__(self, logits: Floats) -> Floats:
        """Return calibrated logits of the same shape."""
        x, y = (np.array(knots, np.float64) for knots in (self.inputs, self.outputs))
        between = np.clip(logits, x[0], x[-1])
        calibrated: Floats = (np.interp(between, x, y) + (logits - between)).astype(logits.dtype)
        return calibrated


TaskCalibration = Annotated[Platt | Isotonic, Field(discriminator="kind")]
_BY_TASK: TypeAdapter[dict[str, TaskCalibration]] = TypeAdapter(dict[str, TaskCalibration])


class Calibration:
    """Calibration maps by task; outputs of tasks without a map are unchanged.

    Args:
        tasks: map of each calibrated task.
    """

    def __init__(self, tasks: Mapping[str, Platt | Isotonic] | None = None) -> None:
        self.tasks = dict(tasks or {})

    def __call__(self, outputs: Floats, tasks: Sequence[str]) -> Floats:
        """Return calibrated outputs [rows, tasks].

        Args:
            outputs: logits or numbers [rows, tasks].
            tasks: names of the columns.
        """
        if not self.tasks.keys() & set(tasks):
            return outputs
        columns = zip(tasks, outputs.T, strict=True)
        return np.stack([self.tasks[task](x) if task in self.tasks else x for task, x in columns], 1)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serializable form with one entry per calibrated task."""
        return {task: calibration.model_dump(mode="json") for task, calibration in self.tasks.items()}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Create a calibration from the result of ``to_json``.

        Raises:
            ValidationError: a number is not finite, a map is not increasing, or a kind or key is unknown.
        """
        return cls(_BY_TASK.validate_python(data))


def to_probabilities(outputs: Floats, tasks: Sequence[Task]) -> npt.NDArray[np.float64]:
    """Convert outputs to scores [batch, tasks]: probabilities of binary tasks, (transformed) values of regressions.

    Args:
        outputs: calibrated logits and values [batch, tasks].
        tasks: tasks in the order of the columns.
    """
    scores = outputs.astype(np.float64)
    binary = [task.kind == "binary" for task in tasks]
    columns = slice(None) if all(binary) else np.flatnonzero(binary)  # a slice, the usual case, is much cheaper
    with np.errstate(over="ignore"):  # exp overflows where the probability is 0.
        scores[:, columns] = 1.0 / (1.0 + np.exp(-scores[:, columns]))
    return scores
