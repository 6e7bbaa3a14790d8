"""Tests of ``pipelines.evaluation.importance.format`` and of the order of its tables."""

from __future__ import annotations

from typing import Any

from pipelines.evaluation.importance.format import MAX_FEATURES, format_importance
from pipelines.evaluation.importance.ranked import by_all_tasks, by_task, is_above_zero


def result(importance: float | None, interval: list[float] | None) -> dict[str, Any]:
    return {"importance": importance, "interval": interval}


def entry(name: str, kind: str = "feature", **tasks: dict[str, Any]) -> dict[str, Any]:
    return {"kind": kind, "name": name, "features": [name], "shuffled_by": "row", "tasks": tasks}


CLEAR, UNCLEAR = result(0.1, [0.05, 0.15]), result(0.2, [-0.1, 0.4])
ENTRIES = [
    entry("unused", click=result(0.0, [0.0, 0.0]), watch=result(0.0, [0.0, 0.0])),
    entry("unclear", click=UNCLEAR, watch=result(0.0, [-0.1, 0.1])),
    entry("clear", click=CLEAR, watch=result(-0.2, [-0.3, -0.1])),
    entry("unknown", click=result(None, None)),
    entry("user_id", "counter", click=CLEAR, watch=CLEAR),
]


def importance(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "rows": 1234,
        "shuffles": 5,
        "intervals": {"unit": "user", "units": 321, "rows_without_user": 0, "draws": 200},
        "metrics": {"click": "auc", "watch": "rmse"},
        "entries": entries,
    }


def test_importance_is_marked_if_its_interval_lies_above_zero() -> None:
    assert is_above_zero(CLEAR)
    others = (UNCLEAR, result(-0.2, [-0.3, -0.1]), result(0.0, [0.0, 0.0]), result(0.1, None))
    assert not any(map(is_above_zero, others))


def test_by_task_orders_by_value_without_undefined_ones() -> None:
    assert [e["name"] for e in by_task(ENTRIES, "click")] == ["unclear", "clear", "user_id", "unused"]


def test_by_all_tasks_orders_clear_ones_first() -> None:
    assert [e["name"] for e in by_all_tasks(ENTRIES)] == ["user_id", "clear", "unclear", "unused", "unknown"]


def test_format_importance_marks_intervals_above_zero() -> None:
    about, features, groups = format_importance(importance(ENTRIES))
    assert about == [
        "permutation importance: drop in AUC or rise in RMSE if the values are shuffled, on 1,234 rows of 321 users, "
        "5 shuffles; * the 95 % interval lies above 0"
    ]
    assert [line.split() for line in features] == [
        ["feature", "click", "watch"],
        ["clear", "+0.1000*", "-0.2000"],
        ["unclear", "+0.2000", "+0.0000"],
        ["unused", "+0.0000", "+0.0000"],
        ["unknown", "–", "–"],
    ]
    assert [line.split() for line in groups] == [
        ["shuffled", "together", "click", "watch"],
        ["counter", "user_id", "+0.1000*", "+0.1000*"],
    ]


def test_format_importance_of_many_features_shows_the_most_important() -> None:
    entries = [entry(f"f{i}", click=result(i / 100, [i / 100, i / 100]), watch=UNCLEAR) for i in range(1, 40)]
    _, features = format_importance(importance(entries))
    assert features[1].startswith("f39 ")
    assert len(features) == 1 + MAX_FEATURES + 1
    assert features[-1] == f"and {39 - MAX_FEATURES} less important; --json lists all"


def test_format_importance_of_many_tasks_uses_several_tables() -> None:
    tasks = {f"task{i}": CLEAR for i in range(12)}
    blocks = format_importance({**importance([entry("age", **tasks)]), "metrics": dict.fromkeys(tasks, "auc")})
    assert blocks[0][0].startswith("permutation importance: drop in AUC if ")
    assert [len(block[0].split()) - 1 for block in blocks[1:]] == [9, 3]
