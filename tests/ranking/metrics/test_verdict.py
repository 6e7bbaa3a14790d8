"""Sentences that say whether a model beats its baselines."""

from __future__ import annotations

from typing import Any

from ranking.metrics.verdict import verdict


def result(metric: str, model: float, baseline: float, interval: list[float] | None, better: str | None) -> Any:
    difference = model - baseline
    values = {"model": model, "baseline": baseline, "difference": difference, "interval": interval, "better": better}
    return {metric: values}


AHEAD = result("auc", 0.8, 0.7, [0.05, 0.15], "model")
EQUAL = result("auc", 0.8, 0.81, [-0.03, 0.01], None)
BEHIND = result("auc", 0.7, 0.8, [-0.15, -0.05], "baseline")


def test_all_beaten() -> None:
    tasks = {
        "click": {"constant": AHEAD, "popularity": AHEAD},
        "watch": {"linear": result("rmse", 1, 2, [-2, -1], "model")},
    }
    assert verdict({"tasks": tasks}) == ["the model beats every baseline in AUC and RMSE on all tasks"]


def test_baselines_that_are_not_beaten_are_named_worst_first() -> None:
    tasks = {"click": {"constant": AHEAD, "popularity": EQUAL, "linear": BEHIND}, "like": {"popularity": AHEAD}}
    assert verdict({"tasks": tasks}) == [
        "click: the model does not beat the linear model: AUC 0.7000 against 0.8000, "
        "difference -0.1000 [-0.1500, -0.0500]; nor popularity"
    ]


def test_larger_rmse_is_worse() -> None:
    tasks = {
        "watch": {"user_mean": result("rmse", 2.0, 1.5, None, None), "linear": result("rmse", 2.0, 1.0, None, None)}
    }
    (line,) = verdict({"tasks": tasks})
    assert line.startswith("watch: the model does not beat the linear model: RMSE 2.0000 against 1.0000")
    assert line.endswith("without an interval; nor the user mean")


def test_reasons_for_no_baselines() -> None:
    assert verdict(None) == []  # an evaluation of version 0.1.0
    assert verdict({"omitted": "evaluation.baselines is empty"}) == ["no baselines: evaluation.baselines is empty"]
    undefined = {"auc": {"model": None, "baseline": None, "difference": None, "interval": None, "better": None}}
    omitted = {"lightgbm": {"omitted": "lightgbm is not installed"}, "popularity": undefined}
    assert verdict({"tasks": {"click": omitted}}) == ["no baselines: AUC and RMSE are undefined on these rows"]
