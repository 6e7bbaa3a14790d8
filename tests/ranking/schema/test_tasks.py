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
    ],
)
def test_invalid_task_is_rejected(changes: dict[str, Any], reason: str) -> None:
    assert reason in validation_message(Task, {"name": "click", "kind": "binary", **changes})


def test_mask_sampling_and_weight_are_off_by_default() -> None:
    task = Task(name="click", kind="binary")
    assert (task.mask, task.keep_negatives, Columns().weight) == (None, 1.0, None)


def test_mask_may_be_the_label_of_another_task() -> None:
    assert Task(name="buy", kind="binary", mask="click").mask == "click"
