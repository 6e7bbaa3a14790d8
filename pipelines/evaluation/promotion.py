"""Promotion check: whether a new model is worse than the served one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.evaluation.differences import LOWER_IS_BETTER
from pipelines.evaluation.format import describe_few_units, describe_rare_labels
from ranking.metrics import MIN_UNITS

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


def describe_lack_of_power(comparison: Mapping[str, Any], objective: Mapping[str, float]) -> str | None:
    """Return why a comparison cannot tell a worse model; None if it can.

    It can if every task of the objective has an interval, and at least one task if the models share none of those.

    Args:
        comparison: result of ``compare``.
        objective: weight of each task in the ranking score.
    """
    tasks, intervals = comparison["tasks"], comparison["intervals"]
    lacking = {name: result for name, result in tasks.items() if not _has_interval(result["measures"])}
    needed = [name for name in tasks if objective.get(name)]
    if not _has_draws(comparison) or not (any(name in lacking for name in needed) or len(lacking) == len(tasks)):
        return None
    if intervals["units"] < MIN_UNITS:
        return describe_few_units(intervals)
    unit, reasons = intervals["unit"], []
    if positives := [f"{name} {result['positives']:,}" for name, result in lacking.items() if "positives" in result]:
        reasons.append(f"{describe_rare_labels('auc', unit)} (positives: {', '.join(positives)})")
    if labels := [f"{name} {result['rows']:,}" for name, result in lacking.items() if "label_deviation" in result]:
        reasons.append(f"{describe_rare_labels('rmse', unit)} (labels: {', '.join(labels)})")
    if unlabeled := [name for name, result in lacking.items() if not result["rows"]]:
        reasons.append(f"no row has a label of {', '.join(unlabeled)}")
    return "; ".join(reasons)


def _has_interval(measures: Mapping[str, Any]) -> bool:
    """Return whether a metric that blocks a promotion has an interval."""
    return any(metric in measures and measures[metric]["interval"] is not None for metric in GUARDED_METRICS)


def _has_draws(comparison: Mapping[str, Any]) -> bool:
    return bool(comparison["intervals"]["draws"])


def _is_worse(m: Mapping[str, Any], *, drawn: bool) -> bool:
    """Return whether B is significantly worse; an undefined metric (such as AUC without a positive) is not."""
    return m["difference"] is not None and (not drawn or m["better"] == "a")


def _regression(task: str, metric: str, m: Mapping[str, Any], margin: float) -> Regression:
    loss = m["difference"] if LOWER_IS_BETTER[metric] else -m["difference"]
    return Regression(task, metric, m["a"], m["b"], loss / max(m["a"], MIN_VALUE), margin)
