"""What makes a model worse than another."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.evaluation.promotion import find_regressions


def found(measure: str, a: float | None, b: float | None, interval: list[float] | None, better: str | None) -> Any:
    """A comparison of one measure of task "click"."""
    difference = None if a is None or b is None else b - a
    compared = {"a": a, "b": b, "difference": difference, "interval": interval, "better": better}
    return {"tasks": {"click": {"rows": 100, "measures": {measure: compared}}}}


@pytest.mark.parametrize(
    ("comparison", "refused"),
    [
        pytest.param(found("auc", 0.80, 0.78, [-0.03, -0.01], "a"), True, id="auc falls"),
        pytest.param(found("auc", 0.80, 0.82, [0.01, 0.03], "b"), False, id="auc rises"),
        pytest.param(found("auc", 0.80, 0.795, [-0.006, -0.004], "a"), False, id="auc falls within the margin"),
        pytest.param(found("auc", 0.80, 0.78, [-0.05, 0.01], None), False, id="auc falls by chance"),
        pytest.param(found("auc", 0.80, 0.78, None, None), True, id="auc falls, without interval"),
        pytest.param(found("auc", None, None, None, None), False, id="auc is unknown"),
        pytest.param(found("logloss", 0.50, 0.52, [0.01, 0.03], "a"), True, id="log loss rises"),
        pytest.param(found("logloss", 0.50, 0.48, [-0.03, -0.01], "b"), False, id="log loss falls"),
        pytest.param(found("rmse", 1.0, 1.2, [0.1, 0.3], "a"), True, id="rmse rises"),
        pytest.param(found("calibration", 1.0, 3.0, [1.9, 2.1], None), False, id="no measure of quality"),
    ],
)
def test_what_is_lost(comparison: Any, refused: bool) -> None:
    assert bool(find_regressions(comparison, margin=0.01)) is refused


def test_says_how_much() -> None:
    (loss,) = find_regressions(found("auc", 0.80, 0.76, [-0.05, -0.03], "a"), margin=0.01)
    assert str(loss) == "click auc 0.8000 → 0.7600 (5.0% worse)"
