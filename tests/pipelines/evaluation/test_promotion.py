"""Tests of ``pipelines.evaluation.promotion``."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.evaluation.promotion import describe_lack_of_power, find_regressions


def comparison_of(
    measure: str, a: float | None, b: float | None, interval: list[float] | None, better: str | None, draws: int = 200
) -> Any:
    """Return a comparison of one metric of the task "click"."""
    difference = None if a is None or b is None else b - a
    result = {"a": a, "b": b, "difference": difference, "interval": interval, "better": better}
    intervals = {"unit": "user", "units": 50, "rows_without_user": 0, "draws": draws}
    return {"intervals": intervals, "tasks": {"click": {"rows": 100, "positives": 4, "measures": {measure: result}}}}


@pytest.mark.parametrize(
    ("comparison", "blocked"),
    [
        pytest.param(comparison_of("auc", 0.80, 0.78, [-0.03, -0.01], "a"), True, id="auc falls"),
        pytest.param(comparison_of("auc", 0.80, 0.82, [0.01, 0.03], "b"), False, id="auc rises"),
        pytest.param(comparison_of("auc", 0.80, 0.795, [-0.006, -0.004], "a"), False, id="auc falls within the margin"),
        pytest.param(comparison_of("auc", 0.80, 0.78, [-0.05, 0.01], None), False, id="auc falls by chance"),
        pytest.param(comparison_of("auc", 0.80, 0.78, None, None), False, id="auc falls, with few positives"),
        pytest.param(comparison_of("auc", 0.80, 0.78, None, None, draws=0), True, id="auc falls, without draws"),
        pytest.param(comparison_of("auc", 0.80, 0.82, None, None, draws=0), False, id="auc rises, without draws"),
        pytest.param(comparison_of("auc", None, None, None, None), False, id="auc is unknown"),
        pytest.param(comparison_of("logloss", 0.50, 0.52, [0.01, 0.03], "a"), True, id="log loss rises"),
        pytest.param(comparison_of("logloss", 0.50, 0.48, [-0.03, -0.01], "b"), False, id="log loss falls"),
        pytest.param(comparison_of("rmse", 1.0, 1.2, [0.1, 0.3], "a"), True, id="rmse rises"),
        pytest.param(comparison_of("calibration", 1.0, 3.0, [1.9, 2.1], None), False, id="calibration is not guarded"),
    ],
)
def test_find_regressions_returns_significant_losses_beyond_the_margin(comparison: Any, blocked: bool) -> None:
    assert bool(find_regressions(comparison, margin=0.01)) is blocked


CLICK = {"click": 1.0}


def test_lack_of_power_is_described() -> None:
    few = comparison_of("auc", 0.80, 0.78, None, None)
    reason = "fewer than 5 users have a positive, or a negative (positives: click 4)"
    assert describe_lack_of_power(few, CLICK) == reason
    assert describe_lack_of_power(few, {"other": 1.0}) == reason, "no task has an interval"
    assert describe_lack_of_power(comparison_of("auc", 0.80, 0.78, None, None, draws=0), CLICK) is None
    few["intervals"]["units"] = 3
    assert describe_lack_of_power(few, CLICK) == "there are only 3 users"


@pytest.mark.parametrize(
    ("objective", "lacks"),
    [
        ({"click": 1.0}, False),
        ({"click": 1.0, "rare": 0.0}, False),
        ({"click": 1.0, "rare": 0.1}, True),
        ({"items": -2.0}, True),
        ({"unlabeled": 1.0}, True),
        ({"task of the new model only": 1.0}, False),
    ],
)
def test_lack_of_power_is_judged_by_task_of_the_objective(objective: dict[str, float], lacks: bool) -> None:
    comparison = comparison_of("logloss", 0.80, 0.78, [-0.1, 0.1], None)
    few = {metric: comparison_of(metric, 0.80, 0.78, None, None)["tasks"]["click"] for metric in ("auc", "rmse")}
    comparison["tasks"] |= {
        "rare": few["auc"],
        "items": {"rows": 2, "label_deviation": 1.0, "measures": few["rmse"]["measures"]},
        "unlabeled": {"rows": 0, "measures": {}},
    }
    assert describe_lack_of_power(comparison, objective) == (
        "fewer than 5 users have a positive, or a negative (positives: rare 4); "
        "fewer than 5 users have a label (labels: items 2); no row has a label of unlabeled"
        if lacks
        else None
    )


def test_regression_text_states_the_loss() -> None:
    (regression,) = find_regressions(comparison_of("auc", 0.80, 0.76, [-0.05, -0.03], "a"), margin=0.01)
    assert str(regression) == "click auc 0.8000 → 0.7600 (5.0% worse)"
    assert regression.to_json() == {
        "task": "click", "measure": "auc", "served": 0.80, "new": 0.76, "share": pytest.approx(0.05)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("served", "new", "text"),
    [
        (0.5, 0.50501, "logloss 0.5000 → 0.5050 (1.002% worse)"),
        (0.5, 0.5050001, "logloss 0.5000 → 0.5050 (1.00002% worse)"),
        (0.00123, 0.00126, "logloss 0.0012 → 0.0013 (2.4% worse)"),
        (0.000123, 0.000126, "logloss 0.00012 → 0.00013 (2.4% worse)"),
        (0.0, 0.1, "logloss 0.0000 → 0.1000 (10000000000000.0% worse)"),
    ],
)
def test_regression_text_shows_enough_digits(served: float, new: float, text: str) -> None:
    (regression,) = find_regressions(comparison_of("logloss", served, new, [1e-9, 1.0], "a"), margin=0.01)
    assert str(regression) == f"click {text}"
