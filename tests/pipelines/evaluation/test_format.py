"""Tests of ``pipelines.evaluation.format``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pipelines.evaluation.format import describe_intervals, format_comparison, format_evaluation
from pipelines.evaluation.predictions import Predictions
from pipelines.runs.run import RunFolder
from ranking.frozen.calibration import Calibration, Platt
from ranking.schema import Task
from tests.pipelines.evaluation.conftest import evaluate_with_new_draws

CLICK = Task(name="click", kind="binary")
WATCH = Task(name="watch", kind="regression")
HEAD = "task positives auc 95 % interval gauc gauc/day ndcg@10 logloss norm.entr. calibr. cal.error"

MakePredictions = Callable[..., Predictions]


def blocks(evaluation: dict[str, Any]) -> list[list[str]]:
    return [block.splitlines() for block in format_evaluation(evaluation).split("\n\n")]


def words(line: str) -> str:
    return " ".join(line.split())


# Format evaluation.


def test_format_evaluation_has_one_line_per_task(make_predictions: MakePredictions) -> None:
    rows = ([[1, 5.0], [0, 6.5]] * 600, [[0.8, 5.0], [0.3, 6.0]] * 600)
    binary, numbers = blocks(evaluate_with_new_draws(make_predictions([CLICK, WATCH], *rows)))
    assert binary[0] == "1,200 rows; 95 % intervals over 1,200 users"
    assert words(binary[1]) == HEAD
    assert words(binary[2]).startswith("click 600 1.0000 1.0000–1.0000 – – – 0.2899 0.4183 1.100 0.2500")
    assert words(numbers[0]) == "task rows rmse 95 % interval mae r² label s.d."
    assert words(numbers[1]).startswith("watch 1,200 0.3536 0.")
    assert words(numbers[1]).endswith("0.2500 0.7778 0.7500")


def test_format_evaluation_of_few_labels_names_the_tasks_without_intervals(make_predictions: MakePredictions) -> None:
    """Two labels of a regression task, as of a task whose mask has two positives, give no intervals."""
    labels = [[1.0, 3.0], [1.0, 5.0], *[[0.0, float("nan")]] * 20]
    predictions = make_predictions([CLICK, WATCH], labels, [[0.5, 4.0]] * 22)
    evaluation = evaluate_with_new_draws(predictions)
    binary, numbers = blocks(evaluation)
    assert binary[1:3] == [
        "no intervals for click: fewer than 5 users have a positive, or a negative",
        "no intervals for watch: fewer than 5 users have a label",
    ]
    assert words(numbers[1]) == "watch 2 1.0000 – 1.0000 0.0000 1.0000"
    assert [evaluation["tasks"]["watch"][f"{metric}_interval"] for metric in ("rmse", "mae", "r2")] == [None] * 3


def test_format_evaluation_of_undefined_metrics_shows_dashes(make_predictions: MakePredictions) -> None:
    ((*_, line),) = blocks(evaluate_with_new_draws(make_predictions([CLICK], [float("nan")], [0.5])))
    assert words(line) == "click " + " ".join("–" * 10)


def test_format_evaluation_of_wide_cells_aligns_the_columns(make_predictions: MakePredictions) -> None:
    tasks = [Task(name="a_task_with_a_long_name", kind="binary"), CLICK, WATCH]
    rows = ([[1, 0, 1e7], [0, 1, -1e7]] * 800, [[0.8, 0.3, 0.0], [0.3, 0.8, 0.0]] * 800)
    for _, *lines in blocks(evaluate_with_new_draws(make_predictions(tasks, *rows))):
        assert len({len(line) for line in lines}) == 1


def test_format_evaluation_of_a_calibrated_task_shows_both_values(make_predictions: MakePredictions) -> None:
    calibration = Calibration({"click": Platt(slope=1.0, shift=-1.0)})
    predictions = make_predictions([CLICK], [1, 0, 0], [0.5, 0.4, 0.6], calibration=calibration)
    _, (head, line) = blocks(evaluate_with_new_draws(predictions))
    assert words(head) == "calibrated logloss before norm.entr. before calibr. before cal.error before"
    assert words(line).split()[5:7] == ["0.821", "1.500"]


def test_format_evaluation_of_slices_has_one_line_per_value() -> None:
    part = {"rows": 1200, "tasks": {"click": {"auc": 0.75}, "watch": {"rmse": 12.5}}}
    empty = {"rows": 7, "tasks": {"click": {"rows": 0}, "watch": {"rmse": 1.0}}}
    evaluation = {"rows": 1207, "ndcg_at": 10, "tasks": part["tasks"], "slices": {"tab": {"home": part, "7": empty}}}
    evaluation["tasks"] = {"click": {}, "watch": {}}
    *_, (title, *lines) = blocks(evaluation)
    assert title == "by tab: AUC of binary tasks, RMSE of regression tasks"
    assert [words(line) for line in lines] == ["tab rows click watch", "home 1,200 0.7500 12.5000", "7 7 – 1.0000"]
    assert len({len(line) for line in lines}) == 1


def test_format_evaluation_of_many_tasks_splits_the_slice_tables() -> None:
    tasks = {f"t{i}": {"auc": 0.5} for i in range(12)}
    evaluation = {"rows": 5, "ndcg_at": 10, "tasks": tasks, "slices": {"tab": {"1": {"rows": 5, "tasks": tasks}}}}
    _, first, second = blocks(evaluation)
    assert first[1].split()[2:] == [f"t{i}" for i in range(9)]
    assert second[1].split()[2:] == ["t9", "t10", "t11"]


def test_format_evaluation_of_a_run_ends_with_its_gates(run: RunFolder) -> None:
    binary, numbers, gates = blocks(json.loads(run.evaluation.read_text()))
    assert len(binary) + len(numbers) == 4 + len(run.load_config().tasks)
    assert binary[1] == "no intervals for follow, dislike: fewer than 5 users have a positive, or a negative"
    assert gates[0].startswith("dselect_k: ")


@pytest.mark.parametrize(
    ("unit", "units", "without_user", "draws", "text"),
    [
        ("user", 812, 0, 200, "95 % intervals over 812 users"),
        ("user", 812, 9, 200, "95 % intervals over 812 users (9 rows without a user count by request or singly)"),
        ("user", 29, 0, 200, "95 % intervals over 29 users; with fewer than 30 they are rough"),
        ("request", 1200, 6000, 200, "95 % intervals over 1,200 requests, because most rows have no user"),
        (
            "row",
            7,
            7,
            200,
            "95 % intervals over 7 rows, because most rows have no user; with fewer than 30 they are rough",
        ),
        ("user", 1, 0, 200, "no intervals: there is only one user"),
        ("user", 4, 0, 200, "no intervals: there are only 4 users"),
        ("user", 812, 0, 0, "no intervals, because evaluation.bootstrap = 0"),
    ],
)
def test_describe_intervals_names_the_unit(unit: str, units: int, without_user: int, draws: int, text: str) -> None:
    entry = {"unit": unit, "units": units, "rows_without_user": without_user, "draws": draws}
    assert describe_intervals(entry) == text


FREQUENT = "because one user has more than half of the rows, and such an id counts as missing"


@pytest.mark.parametrize(
    ("unit", "units", "text"),
    [
        ("row", 1200, f"95 % intervals over 1,200 rows, {FREQUENT}"),
        ("row", 3, f"no intervals: there are only 3 rows, {FREQUENT}"),
        (
            "user",
            900,
            "95 % intervals over 900 users (700 rows, most of one user with more than half of all, "
            "count by request or singly)",
        ),
    ],
)
def test_describe_intervals_names_a_user_with_more_than_half_of_the_rows(unit: str, units: int, text: str) -> None:
    entry = {"unit": unit, "units": units, "rows_without_user": 700, "placeholder_user": True, "draws": 200}
    assert describe_intervals(entry) == text


def comparison_of(**measures: Any) -> dict[str, Any]:
    return {
        "a": "runs/1",
        "b": "runs/2",
        "rows": 12345,
        "ndcg_at": 5,
        "tasks": {"click": {"rows": 12345, "measures": measures}},
    }


def metric(a: float | None, b: float | None, interval: list[float] | None, better: str | None = None) -> dict[str, Any]:
    difference = None if a is None or b is None else b - a
    return {"a": a, "b": b, "difference": difference, "interval": interval, "better": better}


# Format comparison.


def test_format_comparison_marks_intervals_that_exclude_zero() -> None:
    text = format_comparison(
        comparison_of(
            auc=metric(0.7, 0.71, [0.002, 0.02], "b"),
            logloss=metric(0.4, 0.41, [0.001, 0.02], "a"),
            calibration=metric(1.0, 1.2, [0.1, 0.3]),
            gauc=metric(0.6, 0.6, [-0.01, 0.01]),
        )
    )
    a, b, rows, unit, _, head, *lines = text.splitlines()
    assert (a, b, rows) == ("A  runs/1", "B  runs/2", "12,345 rows; * the interval excludes 0")
    assert unit == "95 % intervals over users"
    assert words(head) == "task metric A B B − A 95 % interval"
    assert [words(line) for line in lines] == [
        "click auc 0.7000 0.7100 +0.0100 +0.0020 … +0.0200 * B is better",
        "click logloss 0.4000 0.4100 +0.0100 +0.0010 … +0.0200 * A is better",
        "click calibration 1.000 1.200 +0.2000 +0.1000 … +0.3000 *",
        "click gauc 0.6000 0.6000 +0.0000 -0.0100 … +0.0100",
    ]


def test_format_comparison_names_the_tasks_without_intervals() -> None:
    comparison = comparison_of(auc=metric(0.7, 0.71, None))
    comparison["tasks"]["watch"] = {"rows": 2, "measures": {"rmse": metric(2.0, 1.0, None)}}
    comparison["intervals"] = {"unit": "user", "units": 50, "rows_without_user": 0, "draws": 200}
    assert format_comparison(comparison).splitlines()[4:6] == [
        "no intervals for click: fewer than 5 users have a positive, or a negative",
        "no intervals for watch: fewer than 5 users have a label",
    ]


@pytest.mark.parametrize(("b", "line"), [(0.5, "click ndcg@5 – 0.5000 – –"), (None, None)])
def test_format_comparison_of_undefined_metrics_shows_dashes_or_no_line(b: float | None, line: str | None) -> None:
    _, *lines = format_comparison(comparison_of(ndcg=metric(None, b, None))).splitlines()[5:]
    assert [words(text) for text in lines] == ([] if line is None else [line])
