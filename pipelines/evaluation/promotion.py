"""Whether a new model may take the place of the one that is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.evaluation.compare import LOWER_IS_BETTER

GUARDED_METRICS = ("auc", "logloss", "rmse")
"""How well a task is ranked, how true its probabilities are, how near its numbers."""


@dataclass(frozen=True)
class Regression:
    """A measure of a task by which the new model is worse.

    Attributes:
        task: of both models.
        measure: of the task.
        served: its value for the model that is served.
        new: its value for the new one.
        share: of ``served`` that is lost.
    """

    task: str
    measure: str
    served: float
    new: float
    share: float

    def __str__(self) -> str:
        return f"{self.task} {self.measure} {self.served:.4f} → {self.new:.4f} ({self.share:.1%} worse)"

    def to_json(self) -> dict[str, Any]:
        """As ``daily.json`` has it."""
        return asdict(self)


def find_regressions(found: Mapping[str, Any], margin: float) -> list[Regression]:
    """Where the new model is worse by more than a margin, and not by chance: the paired interval excludes 0.

    Args:
        found: what ``comparing.compare`` says of the served model as A and the new one as B. Where it has no interval
            the values alone decide.
        margin: what may be lost, as a share of the served model's value.
    """
    found_losses = [
        _loss(task, measure, part["measures"][measure])
        for task, part in found["tasks"].items()
        for measure in GUARDED_METRICS
        if measure in part["measures"] and _is_worse(part["measures"][measure])
    ]
    return [loss for loss in found_losses if loss.share > margin]


def _is_worse(m: Mapping[str, Any]) -> bool:
    """Whether B is worse, and not by chance; a measure may be unknown, as AUC is where no label is positive."""
    return m["difference"] is not None and (m["interval"] is None or m["better"] == "a")


def _loss(task: str, measure: str, m: Mapping[str, Any]) -> Regression:
    lost = m["difference"] if LOWER_IS_BETTER[measure] else -m["difference"]
    return Regression(task, measure, m["a"], m["b"], lost / m["a"])
