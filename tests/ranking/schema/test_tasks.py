"""Masks and down-sampling of a task, and the weight of a row."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from ranking.schema import Columns, Task
from ranking.schema.validation_errors import format_validation_error


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"mask": "click"}, "mask and label are the same column 'click': only positives would be left"),
        ({"mask": ""}, "mask"),
        ({"keep_negatives": 0}, "keep_negatives"),
        ({"keep_negatives": 1.1}, "keep_negatives"),
        ({"kind": "regression", "keep_negatives": 0.5}, "keep_negatives is for binary tasks"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any], reason: str) -> None:
    data = {"name": "click", "kind": "binary", **wrong}
    with pytest.raises(ValidationError) as caught:
        Task.model_validate(data)
    assert reason in format_validation_error(caught.value, data)


def test_without_them_every_label_and_every_row_counts() -> None:
    task = Task(name="click", kind="binary")
    assert (task.mask, task.keep_negatives, Columns().weight) == (None, 1.0, None)


def test_a_label_may_be_the_mask_of_another() -> None:
    assert Task(name="buy", kind="binary", mask="click").mask == "click"
