from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.report.plots import Marker, Series, Size, calibration, over_steps, thinned, ticks

SIZE = Size(width=240, height=130)
BIN = {"predicted": 0.04, "observed": 0.05, "low": 0.03, "high": 0.09, "rows": 500}


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e6), st.integers(2, 4))
def test_ticks_are_enough_round_and_inside(low: float, width: float, least: int) -> None:
    high = low + width
    found = ticks(low, high, least)
    assert least <= len(found) <= 9
    assert low - 1e-6 * width <= found[0] <= found[-1] <= high + 1e-6 * width
    assert {f"{b - a:.0e}"[0] for a, b in itertools.pairwise(found)} <= {"1", "2", "5"}


def test_ticks_of_no_range_are_its_value() -> None:
    assert ticks(3.0, 3.0, 4) == [3.0]


@given(st.integers(1, 300), st.integers(2, 50))
def test_thinning_keeps_both_ends_and_no_more_than_asked(count: int, most: int) -> None:
    points = [(float(i), 0.0) for i in range(count)]
    kept = thinned(points, most)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert len(kept) == min(count, most)
    assert kept == sorted(set(kept))


class TestOverSteps:
    def test_puts_values_where_the_axes_say(self) -> None:
        line = Series("loss", "train", [(0, 0.0), (50, 1.0), (100, 0.5)])
        plot = over_steps("t", [line], steps=100, label="", y_range=(0.0, 1.0), size=SIZE)
        left, right, top, bottom = 40, 240 - 12, 8, 130 - 22
        middle = (left + right) / 2
        assert plot.paths == [("train", f"M{left} {bottom}L{middle:g} {top}L{right} {(top + bottom) / 2:g}", "loss")]
        assert {text: x for x, text in plot.x_ticks}["0"] == left

    def test_leaves_out_what_is_not_finite(self) -> None:
        line = Series("loss", "train", [(1, math.nan), (2, 1.0), (3, math.inf), (4, 2.0)])
        (path,) = over_steps("t", [line], steps=4, label="").paths
        assert path[1].count("L") == 1
        assert "nan" not in path[1]

    def test_without_a_finite_value_has_no_line(self) -> None:
        assert over_steps("t", [Series("loss", "train", [(1, math.nan)])], steps=4, label="").paths == []

    def test_shades_the_annealing(self) -> None:
        moments = [Marker("a", "anneal", 25), Marker("c", "choice", 75)]
        plot = over_steps("t", [], steps=100, label="", moments=moments, size=SIZE)
        assert plot.band == (87.0, 94.0)

    def test_moves_labels_apart(self) -> None:
        lines = [Series(str(i), "e0", [(1, 0.5 + i / 1000)], str(i)) for i in range(5)]
        ends = over_steps("t", lines, steps=1, label="", y_range=(0.0, 1.0), size=SIZE).ends
        heights = [y for _, y, _, _ in ends]
        assert all(b - a > 10.9 for a, b in itertools.pairwise(heights))
        assert [text for *_, text in ends] == ["4", "3", "2", "1", "0"]

    def test_keeps_labels_above_the_axis(self) -> None:
        lines = [Series(str(i), "e0", [(1, 0.0)], str(i)) for i in range(4)]
        ends = over_steps("t", lines, steps=1, label="", y_range=(0.0, 1.0), size=SIZE).ends
        assert max(y for _, y, _, _ in ends) <= SIZE.height - SIZE.bottom


class TestCalibration:
    def test_spreads_rare_events_by_square_roots(self) -> None:
        plot = calibration("t", [("predicted", "after", [BIN, {**BIN, "predicted": 0.01}])], "", SIZE)
        ideal, line = plot.paths
        assert ideal[0] == "ideal"
        first, second = (dot[0] for dot in plot.dots)
        assert first - 40 == pytest.approx(2 * (second - 40), abs=0.2)  # √.04 = 2·√.01
        assert line[0] == "after"

    def test_shows_each_interval(self) -> None:
        ((_, y, _, low, high, text),) = calibration("t", [("predicted", "after", [BIN])], "", SIZE).dots
        assert low > y > high
        assert text == "predicted: predicted 0.0400, observed 0.0500, 500 rows"

    def test_without_an_interval_is_a_dot_alone(self) -> None:
        alone = {**BIN, "low": None, "high": None}
        ((_, y, _, low, high, _),) = calibration("t", [("predicted", "after", [alone])], "", SIZE).dots
        assert low == high == y

    def test_of_rates_that_are_all_zero_can_be_drawn(self) -> None:
        zero = {"predicted": 0.0, "observed": 0.0, "low": 0.0, "high": 0.0, "rows": 5}
        assert calibration("t", [("predicted", "after", [zero])], "", SIZE).dots
