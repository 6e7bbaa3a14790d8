"""Masks and negative sampling of tasks, and row weights."""

from __future__ import annotations

from typing import Any

import pytest

from ranking.schema import Columns, Task
from tests.support.validation_messages import validation_message


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mask": "click"}, "mask and label are the same column 'click': only positives would remain"),
        ({"mask": ""}, "mask"),
        ({"keep_negatives": 0}, "keep_negatives"),
        ({"keep_negatives": 1.1}, "keep_negatives"),
        ({"kind": "regression", "keep_negatives": 0.5}, "keep_negatives is for binary tasks"),
        ({"max": 1.0}, "min and max are for regression tasks: a binary label is 0 or 1"),
        ({"kind": "regression", "min": 5, "max": 5.0}, "min = 5 must be smaller than max = 5"),
        ({"kind": "regression", "max": 1e16}, "max = 1e+16 is beyond ±1e+15, the range of labels in float32"),
        ({"kind": "regression", "min": -1e300}, "min = -1e+300 is beyond ±1e+15"),
        ({"kind": "regression", "transform": "log1p", "max": 1e39}, "max = 1e+39 is beyond ±3.40282e+38"),
        ({"kind": "regression", "transform": "log1p", "min": -1}, "min = -1 is −1 or less, but the transform is log1p"),
        ({"kind": "regression", "max": "60"}, "max"),
    ],
)
def test_invalid_task_is_rejected(changes: dict[str, Any], reason: str) -> None:
    assert reason in validation_message(Task, {"name": "click", "kind": "binary", **changes})


def test_mask_sampling_and_weight_are_off_by_default() -> None:
    task = Task(name="click", kind="binary")
    assert (task.mask, task.keep_negatives, Columns().weight) == (None, 1.0, None)


def test_mask_may_be_the_label_of_another_task() -> None:
    assert Task(name="buy", kind="binary", mask="click").mask == "click"


@pytest.mark.parametrize(
    ("settings", "label_range"),
    [
        ({"kind": "binary"}, (0, 1)),
        ({"kind": "regression"}, (-1e15, 1e15)),
        ({"kind": "regression", "transform": "log1p"}, (-1, 3.4028235e38)),
        ({"kind": "regression", "min": 0, "max": 3600}, (0, 3600)),
        ({"kind": "regression", "min": 0}, (0, 1e15)),
    ],
)
def test_label_range_has_the_configured_bounds_or_those_of_float32(
    settings: dict[str, Any], label_range: tuple[float, float]
) -> None:
    assert Task.model_validate({"name": "watch", **settings}).label_range == label_range
