"""Prediction tasks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PositiveFloat, model_validator

from ranking.schema.base import ColumnName, StrictModel, TaskName, default_to_name

MAX_FLOAT32 = 3.4028235e38
"""Largest number that float32 represents; labels, scores and losses are float32."""
MAX_SQUARED_LABEL = 1e15
"""Largest absolute label of a regression without transform: the sum of squared errors must not overflow float32."""
MAX_OBJECTIVE_WEIGHT = 1e6
"""Maximum absolute weight of a task in an objective. With it, a weighted sum of float32 scores is always finite."""


def _check_some_weight(weights: dict[str, float]) -> dict[str, float]:
    if weights and not any(weights.values()):
        raise ValueError("every weight is 0, so that no task determines the order: give a task another weight")
    return weights


Objective = Annotated[
    dict[
        str,
        Annotated[float, Field(strict=True, allow_inf_nan=False, ge=-MAX_OBJECTIVE_WEIGHT, le=MAX_OBJECTIVE_WEIGHT)],
    ],
    AfterValidator(_check_some_weight),
]
"""Weight of each task in the score that sorts candidates; negative for a task that is to be avoided.

An empty objective stands for the default.
"""


class Task(StrictModel):
    """Prediction of a probability (``binary``) or a number (``regression``).

    A null label is masked: the row is neither used for training nor for evaluation of this task. A regression with
    ``transform = "log1p"`` is trained, scored and evaluated on log(1 + label).

    Attributes:
        name: name of the task.
        kind: binary or regression.
        label: name of the label column; default: the task's name.
        mask: name of a column of 0 and 1; the label is masked where it is not 1.
        min: smallest valid label of a regression, before the transform; None for no configured bound.
        max: largest valid label of a regression, before the transform; None for no configured bound.
        transform: transform of a regression label.
        weight: weight of the task's loss in the total loss.
        keep_negatives: fraction of a binary task's negative labels that training uses, sampled again in each step. The
            others are masked, and the outputs are corrected for it (He et al. 2014, "Practical lessons from predicting
            clicks on ads at Facebook", section 6.3).
        group: name of a group of related tasks in reports, such as engagement or satisfaction.
        calibration: method that calibrates a binary task's probabilities on the validation split after training.
    """

    name: TaskName
    kind: Literal["binary", "regression"]
    label: ColumnName = ""
    mask: ColumnName | None = None
    min: float | None = None
    max: float | None = None
    transform: Literal["none", "log1p"] = "none"
    weight: PositiveFloat = 1.0
    keep_negatives: Annotated[float, Field(gt=0, le=1)] = 1.0
    group: str | None = None
    calibration: Literal["none", "platt", "isotonic"] = "none"

    @model_validator(mode="before")
    @classmethod
    def _label_defaults_to_name(cls, data: Any) -> Any:
        return default_to_name(data, "label")

    @model_validator(mode="after")
    def _check_settings_fit_kind(self) -> Self:
        if self.kind == "binary" and self.transform != "none":
            raise ValueError("transform is for regression tasks: a binary label has no transform")
        if self.kind == "regression" and self.keep_negatives < 1:
            raise ValueError("keep_negatives is for binary tasks: a regression has no negatives")
        if self.kind == "regression" and self.calibration != "none":
            raise ValueError("calibration is for binary tasks: a regression has no probabilities")
        if self.kind == "binary" and (self.min is not None or self.max is not None):
            raise ValueError("min and max are for regression tasks: a binary label is 0 or 1")
        if self.mask == self.label:
            raise ValueError(f"mask and label are the same column '{self.label}': only positives would remain")
        return self

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        for key, bound in (("min", self.min), ("max", self.max)):
            if bound is None:
                continue
            if self.transform == "log1p" and bound <= -1:
                raise ValueError(f"{key} = {bound:g} is −1 or less, but the transform is log1p")
            if abs(bound) > self._limit:
                raise ValueError(f"{key} = {bound:g} is beyond ±{self._limit:g}, the range of labels in float32")
        if self.min is not None and self.max is not None and self.min >= self.max:
            raise ValueError(f"min = {self.min:g} must be smaller than max = {self.max:g}")
        return self

    @property
    def label_range(self) -> tuple[float, float]:
        """Smallest and largest valid label, before the transform, both inclusive.

        Without ``min`` or ``max``, the bound of a regression is the largest label that float32 can represent in the
        loss. With ``transform = "log1p"``, a valid label is additionally greater than −1.
        """
        if self.kind == "binary":
            return 0.0, 1.0
        low = -1.0 if self.transform == "log1p" else -self._limit
        return low if self.min is None else self.min, self._limit if self.max is None else self.max

    @property
    def _limit(self) -> float:
        return MAX_FLOAT32 if self.transform == "log1p" else MAX_SQUARED_LABEL
