"""What is predicted."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from ranking.schema.base import ColumnName, Name, StrictModel, with_name


class Task(StrictModel):
    """What is predicted: a probability (``binary``) or a number (``regression``).

    A null label is masked: the row neither trains nor evaluates this task. A regression with ``transform = "log1p"``
    is trained, scored and evaluated on log(1 + label).

    Attributes:
        label: the label's column; default: the task's name.
        mask: a column of 0 and 1; where it is not 1, the label is masked.
        transform: of a regression's label.
        weight: weight of the task's loss in the sum.
        keep_negatives: share of a binary task's negative labels that training uses, drawn anew in each step. The
            others are masked, and the outputs are corrected for it (He et al. 2014, "Practical lessons from predicting
            clicks on ads at Facebook", section 6.3).
        group: a name for tasks that belong together, such as engagement or satisfaction; reports use it.
        calibration: how a binary task's probabilities are made true on the validation split after training.
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
        return with_name(data, "label")

    @model_validator(mode="after")
    def _settings_fit_kind(self) -> Self:
        if self.kind == "binary" and self.transform != "none":
            raise ValueError("a binary label takes no transform")
        if self.kind == "regression" and self.keep_negatives < 1:
            raise ValueError("keep_negatives is for binary tasks: a regression has no negatives")
        if self.kind == "regression" and self.calibration != "none":
            raise ValueError("only a binary task has probabilities to calibrate")
        if self.mask == self.label:
            raise ValueError(f"mask and label are the same column '{self.label}': only positives would be left")
        return self
