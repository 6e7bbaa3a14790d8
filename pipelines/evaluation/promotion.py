"""Promotion check: whether a new model is worse than the served one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.evaluation.differences import LOWER_IS_BETTER
from pipelines.evaluation.format import describe_rare_class

GUARDED_METRICS = ("auc", "logloss", "rmse")
"""Metrics that block a promotion: ranking quality, quality of the probabilities, and regression error."""


MIN_VALUE = 1e-12
"""Smallest value of the served model by which a loss is divided: a perfect model has a log loss or RMSE of 0."""
MAX_DIGITS = 17
"""Number of digits beyond which two values are printed even if their texts are equal."""


@dataclass(frozen=True)
class Regression:
    """A metric of a task by which the new model is worse.

    Attributes:
        task: name of the task.
        measure: name of the metric.
        served: value of the served model.
        new: value of the new model.
        share: loss as a share of ``served``.
        margin: tolerated loss, which ``share`` exceeds.
    """

    task: str
    measure: str
    served: float
    new: float
    share: float
    margin: float

    def __str__(self) -> str:
        """Format with as many digits as tell both values apart, and the loss from the margin."""
        served, new = distinct_texts(self.served, self.new, "{:.{}f}", 4)
        loss, _ = distinct_texts(self.share, self.margin, "{:.{}%}", 1)
        return f"{self.task} {self.measure} {served} → {new} ({loss} worse)"

    def to_json(self) -> dict[str, Any]:
        """Return the entry of ``daily.json``."""
        return {key: value for key, value in asdict(self).items() if key != "margin"}


def distinct_texts(a: float, b: float, template: str, digits: int) -> tuple[str, str]:
    """Format two different numbers with the fewest digits, at least ``digits``, with which their texts differ."""
    for precision in range(digits, MAX_DIGITS):
        texts = template.format(a, precision), template.format(b, precision)
        if texts[0] != texts[1]:
            break
    return texts


def find_regressions(comparison: Mapping[str, Any], margin: float) -> list[Regression]:
    """Return the metrics by which the new model is significantly worse, by more than a margin.

    A difference is significant if its paired interval excludes 0. If the comparison drew no units at all
    (``evaluation.bootstrap = 0``), the values alone decide.

    Args:
        comparison: result of ``compare`` with the served model as A and the new model as B.
        margin: tolerated loss, as a share of the served model's value.
    """
    regressions = [
        _regression(task, metric, result["measures"][metric], margin)
        for task, result in comparison["tasks"].items()
        for metric in GUARDED_METRICS
        if metric in result["measures"] and _is_worse(result["measures"][metric], drawn=_has_draws(comparison))
    ]
    return [regression for regression in regressions if regression.share > margin]


def describe_lack_of_power(comparison: Mapping[str, Any]) -> str | None:
    """Return why a comparison cannot tell a worse model; None if it can, for at least one task.

    Args:
        comparison: result of ``compare``.
    """
    tasks = comparison["tasks"]
    if not _has_draws(comparison) or any(
        result["measures"][metric]["interval"] is not None
        for result in tasks.values()
        for metric in GUARDED_METRICS
        if metric in result["measures"]
    ):
        return None
    unit = comparison["intervals"]["unit"]
    positives = [f"{name} {result['positives']:,}" for name, result in tasks.items() if "positives" in result]
    if not positives:
        return f"there is only one {unit}"
    return f"{describe_rare_class(unit)} (positives: {', '.join(positives)})"


def _has_draws(comparison: Mapping[str, Any]) -> bool:
    return bool(comparison["intervals"]["draws"])


def _is_worse(m: Mapping[str, Any], *, drawn: bool) -> bool:
    """Return whether B is significantly worse; an undefined metric (such as AUC without a positive) is not."""
    return m["difference"] is not None and (not drawn or m["better"] == "a")


def _regression(task: str, metric: str, m: Mapping[str, Any], margin: float) -> Regression:
    loss = m["difference"] if LOWER_IS_BETTER[metric] else -m["difference"]
    return Regression(task, metric, m["a"], m["b"], loss / max(m["a"], MIN_VALUE), margin)
