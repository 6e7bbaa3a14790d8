from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipelines.init.column_profile import ColumnProfile, profile_columns
from pipelines.init.guesses import LeftOut, TaskGuess
from pipelines.init.labels import binary_task, guess_labels, require_labels
from ranking.errors import LogError

ROWS = 100
CLICKS = [int(i % 5 == 0) for i in range(ROWS)]


def profiles(**columns: Any) -> dict[str, ColumnProfile]:
    return profile_columns(pa.table(columns))


def labels(attributes: tuple[str, ...] = (), **columns: Any) -> tuple[dict[str, TaskGuess], dict[str, LeftOut]]:
    tasks, left_out = guess_labels(profiles(**columns), (), lambda name: name in attributes)
    return {task.column: task for task in tasks}, {column.column: column for column in left_out}


def test_labels_are_found_by_name() -> None:
    tasks, left_out = labels(
        age=list(range(ROWS)),
        is_click=CLICKS,
        is_hate=CLICKS[::-1],
        watch_time=[float(i % 7) for i in range(ROWS)],
        rating=[1 + i % 5 for i in range(ROWS)],
        click_rate=[i / ROWS for i in range(ROWS)],
    )
    assert {name: task.kind for name, task in tasks.items()} == {
        "is_click": "binary",
        "is_hate": "binary",
        "watch_time": "regression",
        "rating": "regression",
    }
    assert tasks["is_hate"].negative
    assert tasks["watch_time"].options == {"transform": "log1p"}
    assert tasks["rating"].options == {}
    assert left_out == {}


def test_outcomes_that_are_not_labels_are_leaks() -> None:
    _, left_out = labels(
        is_click=CLICKS, stay_time=[0.0] * (ROWS - 3) + [1.0, 2.0, 3.0], clicks=[i % 4 for i in range(ROWS)]
    )
    assert {name: column.leak for name, column in left_out.items()} == {"stay_time": True, "clicks": True}


def test_attributes_of_users_and_items_are_not_labels() -> None:
    tasks, left_out = labels(("rating",), is_click=CLICKS, rating=[float(i % 3) for i in range(ROWS)])
    assert list(tasks) == ["is_click"]
    assert left_out == {}


def test_regression_in_another_unit_is_left_out() -> None:
    seconds = np.random.default_rng(0).exponential(9, ROWS)
    tasks, left_out = labels(watch_seconds=seconds, watch_ms=seconds * 1000)
    assert list(tasks) == ["watch_seconds"]
    assert left_out["watch_ms"].reason == "a copy of the label 'watch_seconds'"


def test_last_column_with_two_values_is_the_label_if_no_name_fits() -> None:
    tasks, _ = labels(age=list(range(ROWS)), deposit=["no", "yes"] * (ROWS // 2))
    assert tasks["deposit"].unsure == "chosen by its place, not by its name"


def test_column_without_words_in_its_name_is_not_a_label() -> None:
    tasks, _ = labels(**{"": list(range(ROWS)), "%": CLICKS, "clicked": CLICKS})
    assert list(tasks) == ["clicked"]


def test_log_without_labels_names_columns_and_option() -> None:
    with pytest.raises(LogError, match="no label found among 'age', 'price': name it with --label COLUMN"):
        labels(age=list(range(ROWS)), price=list(range(ROWS)))


@pytest.mark.parametrize(
    ("values", "positive"),
    [
        (["<=50K", ">50K", "<=50K"], [0, 1, 0]),
        (["yes", "yes", "no"], [1, 1, 0]),
        (["b", "a", "b"], [0, 1, 0]),
        ([1, 2, 2], [0, 1, 1]),
        ([-1.0, 1.0, 1.0], [0, 1, 1]),
    ],
)
def test_binary_labels_are_converted_to_0_and_1(values: list[Any], positive: list[int]) -> None:
    (column,) = profiles(label=values).values()
    task = binary_task(column, "")
    assert task is not None
    assert task.convert is not None
    assert task.convert(column.values).to_pylist() == positive


@pytest.mark.parametrize("values", [[0, 1], [False, True], [0.0, 1.0]])
def test_labels_of_0_and_1_are_not_converted(values: list[Any]) -> None:
    task = binary_task(profiles(label=values)["label"], "")
    assert task is not None
    assert task.convert is None


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([None, None], "is null in every row"),
        ([1, 1], "is 1 in every row"),
        (["a", "b", "c"], "holds string with 3 distinct values"),
    ],
)
def test_named_label_that_cannot_be_learned_is_rejected(values: list[Any], reason: str) -> None:
    with pytest.raises(LogError, match=f"--label y: {reason}"):
        require_labels(profiles(y=values), ["y"])


def test_huge_numbers_are_compared_without_overflow() -> None:
    seconds = np.random.default_rng(0).exponential(9, ROWS) * 1e300
    _, left_out = labels(watch_seconds=seconds, watch_ms=seconds * 1000)
    assert left_out["watch_ms"].reason == "a copy of the label 'watch_seconds'"
