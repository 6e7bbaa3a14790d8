"""Tests of the report sections with generated runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.evaluation.format import describe_intervals
from pipelines.report import experts_section, quality_section, training_section
from pipelines.report.page import render
from pipelines.report.run_data import RunData, read_run_data
from pipelines.report.summary import summarize
from tests.pipelines.report.conftest import STEPS, write_run


@pytest.fixture
def make_run_data(tmp_path: Path) -> Callable[..., RunData]:
    """Return a function that writes a run of the given size and reads its data."""
    return lambda **size: read_run_data(write_run(tmp_path / "run", **size).path)


# Schedule markers.


def test_schedule_markers_match_the_schedule(make_run_data: Callable[..., RunData]) -> None:
    run_data = make_run_data(experts=8, experts_budget=4)
    assert {m.style: m.step for m in training_section.schedule_markers(run_data, run_data.histories[0])} == {
        "budget": STEPS // 4,
        "anneal": STEPS // 4,
        "final": STEPS * 6 // 10,
    }


def test_schedule_markers_of_a_budget_without_effect_omit_it(make_run_data: Callable[..., RunData]) -> None:
    run_data = make_run_data(experts=4, experts_budget=4)
    assert {m.style for m in training_section.schedule_markers(run_data, run_data.histories[0])} == {"anneal", "final"}


def test_schedule_markers_of_a_kept_selection_are_empty(make_run_data: Callable[..., RunData]) -> None:
    run_data = make_run_data()
    run_data.histories[0].checks[0]["phase"] = "selected"
    assert training_section.schedule_markers(run_data, run_data.histories[0]) == []


def test_schedule_markers_of_a_gate_without_schedule_are_empty(make_run_data: Callable[..., RunData]) -> None:
    run_data = make_run_data(kind="softmax")
    assert training_section.schedule_markers(run_data, run_data.histories[0]) == []


# Learning curves.


def test_learning_curves_of_sampled_negatives_explain_the_higher_loss(make_run_data: Callable[..., RunData]) -> None:
    run_data = make_run_data()
    first, *others = run_data.config.tasks
    assert "negatives" not in training_section.learning_curves(run_data).about
    sampled = run_data.config.model_copy(update={"tasks": (first.model_copy(update={"keep_negatives": 0.1}), *others)})
    assert (
        f"the negatives of {first.name}:" in training_section.learning_curves(replace(run_data, config=sampled)).about
    )


# Gate weights.


def test_gate_weights_give_each_used_expert_one_color_in_all_panels(make_run_data: Callable[..., RunData]) -> None:
    content = training_section.gate_weights(make_run_data(tasks=3, experts=8, experts_budget=8)).content
    assert content["colored"] == [0, 1, 2, 4, 7]  # the final weight of the other experts is 0
    styles = {style: name for panel in content["panels"] for style, _, name in panel.paths if style != "other"}
    assert styles == {f"e{i}": f"expert {expert}" for i, expert in enumerate(content["colored"])}


def test_gate_weights_label_the_final_experts_of_a_task(make_run_data: Callable[..., RunData]) -> None:
    first, *_ = training_section.gate_weights(make_run_data(tasks=3, experts=8, experts_budget=8)).content["panels"]
    assert [text for *_, text in first.ends] == ["0", "1"]
    assert first.label == "Final gate weights of task_0: expert 0 0.75, expert 1 0.25"


def test_gate_weights_end_where_an_expert_is_removed(make_run_data: Callable[..., RunData]) -> None:
    first, *_ = training_section.gate_weights(make_run_data(tasks=3, experts=8, experts_budget=8)).content["panels"]
    points = {name: path.count("L") + 1 for _, path, name in first.paths}
    assert points["expert 0"] == 40
    assert points["expert 5"] == 24  # up to its first zero weight, at 60 % of the checks


def test_gate_weights_of_many_experts_highlight_selected_ones_without_color(
    make_run_data: Callable[..., RunData],
) -> None:
    content = training_section.gate_weights(make_run_data(tasks=20, experts=32, experts_budget=32)).content
    assert content["crowded"]
    assert any(style == "uncolored" for panel in content["panels"] for style, *_ in panel.paths)


# Overlap.


def test_overlap_of_equal_weights_is_one_and_of_disjoint_experts_zero() -> None:
    weights = {"a": {0: 0.5, 1: 0.5}, "b": {0: 0.5, 1: 0.5}, "c": {2: 1.0}, "d": {0: 1.0}}
    result = experts_section.overlap(weights)
    assert result["a"] == {"a": 1.0, "b": 1.0, "c": 0.0, "d": pytest.approx(0.5 / 1.5)}


def test_overlap_of_tasks_without_experts_is_zero() -> None:
    assert experts_section.overlap({"a": {}, "b": {}})["a"]["b"] == 0.0


@pytest.mark.parametrize(("reading", "sentence"), [("side_by_side", "side by side."), (None, "larger weights.")])
def test_selected_experts_say_how_towers_read_them(
    make_run_data: Callable[..., RunData], reading: str | None, sentence: str
) -> None:
    """Runs of earlier versions do not record it."""
    data = make_run_data(tasks=3, experts=8)
    assert data.selection is not None
    selection = {key: value for key, value in data.selection.items() if key != "reading"}
    selection |= {} if reading is None else {"reading": reading}
    about = experts_section.selected_experts(replace(data, selection=selection)).about
    assert about.removesuffix(f" {experts_section.ADVICE}").endswith(sentence)
    advised = replace(
        data, selection=selection, evaluation={**(data.evaluation or {}), "advice": {"verdict": "Found."}}
    )
    assert experts_section.selected_experts(advised).about.endswith(f"{sentence} Found.")


def test_selected_experts_show_the_similarity_that_the_training_started_from(
    make_run_data: Callable[..., RunData],
) -> None:
    """A task whose label is too rare or noisy has no similarity."""
    data = make_run_data(tasks=3)
    assert experts_section.selected_experts(data).content["similarity"] is None
    first, second, third = data.config.task_names
    record = {
        "tasks": [first, second, third],
        "similarity": [[1.0, 0.25, None], [0.25, 1.0, None], [None, None, None]],
        "groups": [[first, third], [second]],
    }
    data = replace(data, task_similarity=record)
    found = experts_section.selected_experts(data).content["similarity"]
    assert found[first] == {first: 1.0, second: 0.25, third: None}
    html = render(data)
    assert "<h3>Similarity of tasks</h3>" in html
    assert html.count("<td>?</td>") == 5


def test_selected_experts_use_shares_sum_to_one(make_run_data: Callable[..., RunData]) -> None:
    content = experts_section.selected_experts(make_run_data(tasks=3, experts=8, experts_budget=8)).content
    assert sum(expert["share"] for expert in content["use"]) == pytest.approx(1)
    assert content["unused"] == [3, 5, 6]


# Slices.


def test_slices_of_few_tasks_are_rows_with_the_total_last(make_run_data: Callable[..., RunData]) -> None:
    table, _ = quality_section.slices(make_run_data(tasks=3)).content["tables"]
    assert table["columns"] == [("task_0", None), ("task_1", None), ("minutes", None)]
    assert [name for name, _ in table["rows"]][-1] == ("all", 9_000)
    assert table["more"] == 25 - quality_section.MAX_VALUES_AS_ROWS


def test_slices_of_many_tasks_are_columns(make_run_data: Callable[..., RunData]) -> None:
    table, _ = quality_section.slices(make_run_data(tasks=20)).content["tables"]
    assert len(table["columns"]) == quality_section.MAX_VALUES_AS_COLUMNS + 1
    assert [name for name, _ in table["rows"]][-1] == ("minutes", None)
    assert all(len(cells) == len(table["columns"]) for _, cells in table["rows"])


# Quality.


def test_metrics_of_a_log_without_users_name_the_unit(make_run_data: Callable[..., RunData]) -> None:
    run_data = make_run_data()
    assert run_data.evaluation is not None
    assert f"with {describe_intervals(None)}. " in quality_section.metrics(run_data).about  # an older evaluation.json
    intervals = {"unit": "row", "units": 9000, "rows_without_user": 9000, "draws": 200}
    tasks = {name: {**m, "gauc": None, "gauc_by_user_day": None} for name, m in run_data.evaluation["tasks"].items()}
    section = quality_section.metrics(
        replace(run_data, evaluation={**run_data.evaluation, "tasks": tasks, "intervals": intervals})
    )
    assert f"with {describe_intervals(intervals)}. " in section.about
    assert all(table["columns"].keys().isdisjoint(("gauc", "gauc_by_user_day")) for table in section.content["tables"])


def test_metrics_show_gauc_by_user_day_beside_gauc(make_run_data: Callable[..., RunData]) -> None:
    run_data = make_run_data()
    assert run_data.evaluation is not None
    table, _ = quality_section.metrics(run_data).content["tables"]
    assert list(table["columns"])[:3] == ["auc", "gauc", "gauc_by_user_day"]
    for task in run_data.evaluation["tasks"].values():  # as an older version wrote them
        task.pop("gauc_by_user_day", None)
    table, _ = quality_section.metrics(run_data).content["tables"]
    assert list(table["columns"])[:3] == ["auc", "gauc", "ndcg"]


# Calibration curves.


def test_calibration_curves_draw_before_behind_after(make_run_data: Callable[..., RunData]) -> None:
    run_data = make_run_data()
    assert run_data.evaluation is not None
    curves = run_data.evaluation["calibration_curves"]
    run_data.evaluation["uncalibrated_curves"] = {"task_0": curves["task_0"]}
    first, second = quality_section.calibration_curves(run_data).content["panels"]
    assert [style for style, *_ in first.paths] == ["ideal", "before", "after"]
    assert [style for style, *_ in second.paths] == ["ideal", "after"]


def test_calibration_curves_of_regression_tasks_are_omitted(make_run_data: Callable[..., RunData]) -> None:
    run_data = make_run_data(tasks=1)
    assert run_data.evaluation is not None
    del run_data.evaluation["calibration_curves"]
    assert "Only binary tasks" in (quality_section.calibration_curves(run_data).omitted or "")


# Summary notes.


@pytest.mark.parametrize(
    ("part", "change", "note"),
    [
        ("selection", {"snapped_codes": 2}, "2 selectors were still undecided"),
        ("selection", {"converged": False}, "The gate has not converged"),
        ("survey", {"bad": {"'price' is NaN": 1_500}}, "1.5% of the rows are bad"),
    ],
)
def test_summary_notes_describe_the_problem(
    make_run_data: Callable[..., RunData], part: str, change: dict[str, Any], note: str
) -> None:
    run_data = make_run_data()
    (actual,) = summarize(replace(run_data, **{part: {**getattr(run_data, part), **change}}))["notes"]
    assert actual.startswith(note)


def test_summary_notes_name_tasks_with_few_positives(make_run_data: Callable[..., RunData]) -> None:
    run_data = make_run_data()
    assert run_data.evaluation is not None
    evaluation = json.loads(json.dumps(run_data.evaluation))
    evaluation["tasks"]["task_1"]["positives"] = 59
    (actual,) = summarize(replace(run_data, evaluation=evaluation))["notes"]
    assert actual == "Fewer than 60 positive test rows, so the metrics are unreliable: task_1."


def test_summary_notes_of_a_good_run_are_empty(make_run_data: Callable[..., RunData]) -> None:
    assert summarize(make_run_data())["notes"] == []
