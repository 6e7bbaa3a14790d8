"""Prediction tasks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from ranking.schema.base import ColumnName, Name, StrictModel, default_to_name


class Task(StrictModel):
    """Prediction of a probability (``binary``) or a number (``regression``).

    A null label is masked: the row is neither used for training nor for evaluation of this task. A regression with
    ``transform = "log1p"`` is trained, scored and evaluated on log(1 + label).

    Attributes:
        name: name of the task.
        kind: binary or regression.
        label: name of the label column; default: the task's name.
        mask: name of a column of 0 and 1; the label is masked where it is not 1.
        transform: transform of a regression label.
        weight: weight of the task's loss in the total loss.
        keep_negatives: fraction of a binary task's negative labels that training uses, sampled again in each step. The
            others are masked, and the outputs are corrected for it (He et al. 2014, "Practical lessons from predicting
            clicks on ads at Facebook", section 6.3).
        group: name of a group of related tasks in reports, such as engagement or satisfaction.
        calibration: method that calibrates a binary task's probabilities on the validation split after training.
    """

    name: Name
    kind: Literal["binary", "regression"]
    label: ColumnName = ""
    mask: ColumnName | None = None
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
        if self.mask == self.label:
            raise ValueError(f"mask and label are the same column '{self.label}': only positives would remain")
        return self
