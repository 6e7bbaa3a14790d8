"""What each section shows of a hand-made run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.report import experts_section, quality_section, training_section
from pipelines.report.run_data import RunData, read_run_data
from pipelines.report.summary import summary
from tests.pipelines.report.conftest import STEPS, write_run


@pytest.fixture
def facts(tmp_path: Path) -> Callable[..., RunData]:
    """What is known of a run of this size."""
    return lambda **size: read_run_data(write_run(tmp_path / "run", **size).path)


class TestMoments:
    def test_are_those_of_the_schedule(self, facts: Callable[..., RunData]) -> None:
        found = facts(experts=8, experts_budget=4)
        assert {m.style: m.step for m in training_section.moments(found, found.histories[0])} == {
            "budget": STEPS // 4,
            "anneal": STEPS // 4,
            "choice": STEPS * 6 // 10,
        }

    def test_name_no_budget_that_cuts_nothing(self, facts: Callable[..., RunData]) -> None:
        found = facts(experts=4, experts_budget=4)
        assert {m.style for m in training_section.moments(found, found.histories[0])} == {"anneal", "choice"}

    def test_are_none_where_an_earlier_choice_was_kept(self, facts: Callable[..., RunData]) -> None:
        found = facts()
        found.histories[0].checks[0]["phase"] = "selected"
        assert training_section.moments(found, found.histories[0]) == []

    def test_are_none_where_nothing_concludes(self, facts: Callable[..., RunData]) -> None:
        found = facts(kind="softmax")
        assert training_section.moments(found, found.histories[0]) == []


class TestCurves:
    def test_say_that_losses_of_kept_negatives_lie_higher(self, facts: Callable[..., RunData]) -> None:
        found = facts()
        first, *others = found.config.tasks
        assert "negatives" not in training_section.curves(found).about
        sampled = found.config.model_copy(update={"tasks": (first.model_copy(update={"keep_negatives": 0.1}), *others)})
        assert f"the negatives of {first.name}:" in training_section.curves(replace(found, config=sampled)).about


class TestTrajectories:
    def test_give_each_used_expert_one_colour_in_all_panels(self, facts: Callable[..., RunData]) -> None:
        content = training_section.trajectories(facts(tasks=3, experts=8, experts_budget=8)).content
        assert content["coloured"] == [0, 1, 2, 4, 7]  # the others end at 0
        styles = {style: name for panel in content["panels"] for style, _, name in panel.paths if style != "other"}
        assert styles == {f"e{i}": f"expert {expert}" for i, expert in enumerate(content["coloured"])}

    def test_label_the_experts_that_a_task_ends_with(self, facts: Callable[..., RunData]) -> None:
        first, *_ = training_section.trajectories(facts(tasks=3, experts=8, experts_budget=8)).content["panels"]
        assert [text for *_, text in first.ends] == ["0", "1"]
        assert first.label == "Gate weights of task_0, in the end: expert 0 0.75, expert 1 0.25"

    def test_stop_where_an_expert_is_dropped(self, facts: Callable[..., RunData]) -> None:
        first, *_ = training_section.trajectories(facts(tasks=3, experts=8, experts_budget=8)).content["panels"]
        points = {name: path.count("L") + 1 for _, path, name in first.paths}
        assert points["expert 0"] == 40
        assert points["expert 5"] == 24  # until it first weighs nothing, at 60 % of the checks

    def test_draw_chosen_experts_without_a_colour_strongly(self, facts: Callable[..., RunData]) -> None:
        content = training_section.trajectories(facts(tasks=20, experts=32, experts_budget=32)).content
        assert content["crowded"]
        assert any(style == "uncoloured" for panel in content["panels"] for style, *_ in panel.paths)


class TestOverlap:
    def test_is_one_for_tasks_alike_and_zero_for_strangers(self) -> None:
        weights = {"a": {0: 0.5, 1: 0.5}, "b": {0: 0.5, 1: 0.5}, "c": {2: 1.0}, "d": {0: 1.0}}
        found = experts_section.overlap(weights)
        assert found["a"] == {"a": 1.0, "b": 1.0, "c": 0.0, "d": pytest.approx(0.5 / 1.5)}

    def test_of_tasks_without_experts_is_zero(self) -> None:
        assert experts_section.overlap({"a": {}, "b": {}})["a"]["b"] == 0.0


def test_the_use_of_experts_sums_to_one(facts: Callable[..., RunData]) -> None:
    content = experts_section.selection(facts(tasks=3, experts=8, experts_budget=8)).content
    assert sum(expert["share"] for expert in content["use"]) == pytest.approx(1)
    assert content["unused"] == [3, 5, 6]


class TestSlices:
    def test_of_few_tasks_are_rows_with_all_rows_last(self, facts: Callable[..., RunData]) -> None:
        table, _ = quality_section.slices(facts(tasks=3)).content["tables"]
        assert table["columns"] == [("task_0", None), ("task_1", None), ("minutes", None)]
        assert [name for name, _ in table["rows"]][-1] == ("all", 9_000)
        assert table["more"] == 25 - quality_section.VALUES_DOWN

    def test_of_many_tasks_are_columns(self, facts: Callable[..., RunData]) -> None:
        table, _ = quality_section.slices(facts(tasks=20)).content["tables"]
        assert len(table["columns"]) == quality_section.VALUES_ACROSS + 1
        assert [name for name, _ in table["rows"]][-1] == ("minutes", None)
        assert all(len(cells) == len(table["columns"]) for _, cells in table["rows"])


class TestCalibration:
    def test_before_is_drawn_behind_after_where_both_are_there(self, facts: Callable[..., RunData]) -> None:
        found = facts()
        assert found.evaluation is not None
        curves = found.evaluation["calibration_curves"]
        found.evaluation["uncalibrated_curves"] = {"task_0": curves["task_0"]}
        first, second = quality_section.calibrations(found).content["panels"]
        assert [style for style, *_ in first.paths] == ["ideal", "before", "after"]
        assert [style for style, *_ in second.paths] == ["ideal", "after"]

    def test_of_regressions_only_says_that_there_is_none(self, facts: Callable[..., RunData]) -> None:
        found = facts(tasks=1)
        assert found.evaluation is not None
        del found.evaluation["calibration_curves"]
        assert "Only binary tasks" in (quality_section.calibrations(found).lack or "")


class TestNotes:
    @pytest.mark.parametrize(
        ("part", "change", "note"),
        [
            ("selection", {"snapped_codes": 2}, "2 selectors were still undecided"),
            ("selection", {"converged": False}, "The gate has not converged"),
            ("survey", {"bad": {"'price' is NaN": 1_500}}, "1.5% of the rows are bad"),
        ],
    )
    def test_say_what_is_wrong(
        self, facts: Callable[..., RunData], part: str, change: dict[str, Any], note: str
    ) -> None:
        found = facts()
        (said,) = summary(replace(found, **{part: {**getattr(found, part), **change}}))["notes"]
        assert said.startswith(note)

    def test_name_tasks_with_few_positives(self, facts: Callable[..., RunData]) -> None:
        found = facts()
        assert found.evaluation is not None
        evaluation = json.loads(json.dumps(found.evaluation))
        evaluation["tasks"]["task_1"]["positives"] = 59
        (said,) = summary(replace(found, evaluation=evaluation))["notes"]
        assert said.endswith("decide little: task_1.")

    def test_are_none_if_all_is_well(self, facts: Callable[..., RunData]) -> None:
        assert summary(facts())["notes"] == []
