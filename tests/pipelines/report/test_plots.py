from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.report.plots import Marker, Series, Size, calibration_plot, line_plot, thin, ticks

SIZE = Size(width=240, height=130)
BIN = {"predicted": 0.04, "observed": 0.05, "low": 0.03, "high": 0.09, "rows": 500}


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e6), st.integers(2, 4))
def test_ticks_are_round_and_inside_the_range(low: float, width: float, min_count: int) -> None:
    high = low + width
    values = ticks(low, high, min_count)
    assert min_count <= len(values) <= 9
    assert low - 1e-6 * width <= values[0] <= values[-1] <= high + 1e-6 * width
    assert {f"{b - a:.0e}"[0] for a, b in itertools.pairwise(values)} <= {"1", "2", "5"}


def test_ticks_of_an_empty_range_return_its_value() -> None:
    assert ticks(3.0, 3.0, 4) == [3.0]


@given(st.integers(1, 300), st.integers(2, 50))
def test_thin_keeps_both_ends_and_at_most_max_count_points(count: int, max_count: int) -> None:
    points = [(float(i), 0.0) for i in range(count)]
    kept = thin(points, max_count)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert len(kept) == min(count, max_count)
    assert kept == sorted(set(kept))


# Line plot.


def test_line_plot_maps_values_to_pixels() -> None:
    line = Series("loss", "train", [(0, 0.0), (50, 1.0), (100, 0.5)])
    plot = line_plot("t", [line], x_max=100, label="", y_range=(0.0, 1.0), size=SIZE)
    left, right, top, bottom = 40, 240 - 12, 8, 130 - 22
    middle = (left + right) / 2
    assert plot.paths == [("train", f"M{left} {bottom}L{middle:g} {top}L{right} {(top + bottom) / 2:g}", "loss")]
    assert {text: x for x, text in plot.x_ticks}["0"] == left


def test_line_plot_skips_non_finite_values() -> None:
    line = Series("loss", "train", [(1, math.nan), (2, 1.0), (3, math.inf), (4, 2.0)])
    (path,) = line_plot("t", [line], x_max=4, label="").paths
    assert path[1].count("L") == 1
    assert "nan" not in path[1]


def test_line_plot_without_finite_values_has_no_path() -> None:
    assert line_plot("t", [Series("loss", "train", [(1, math.nan)])], x_max=4, label="").paths == []


def test_line_plot_with_markers_shades_the_annealing() -> None:
    markers = [Marker("a", "anneal", 25), Marker("c", "final", 75)]
    plot = line_plot("t", [], x_max=100, label="", markers=markers, size=SIZE)
    assert plot.band == (87.0, 94.0)


def test_line_plot_moves_overlapping_labels_apart() -> None:
    lines = [Series(str(i), "e0", [(1, 0.5 + i / 1000)], str(i)) for i in range(5)]
    ends = line_plot("t", lines, x_max=1, label="", y_range=(0.0, 1.0), size=SIZE).ends
    heights = [y for _, y, _, _ in ends]
    assert all(b - a > 10.9 for a, b in itertools.pairwise(heights))
    assert [text for *_, text in ends] == ["4", "3", "2", "1", "0"]


def test_line_plot_keeps_labels_above_the_axis() -> None:
    lines = [Series(str(i), "e0", [(1, 0.0)], str(i)) for i in range(4)]
    ends = line_plot("t", lines, x_max=1, label="", y_range=(0.0, 1.0), size=SIZE).ends
    assert max(y for _, y, _, _ in ends) <= SIZE.height - SIZE.bottom


# Calibration plot.


def test_calibration_plot_has_square_root_axes() -> None:
    plot = calibration_plot("t", [("predicted", "after", [BIN, {**BIN, "predicted": 0.01}])], "", SIZE)
    ideal, line = plot.paths
    assert ideal[0] == "ideal"
    first, second = (dot[0] for dot in plot.dots)
    assert first - 40 == pytest.approx(2 * (second - 40), abs=0.2)  # √.04 = 2·√.01
    assert line[0] == "after"


def test_calibration_plot_shows_the_interval_of_each_bin() -> None:
    ((_, y, _, low, high, text),) = calibration_plot("t", [("predicted", "after", [BIN])], "", SIZE).dots
    assert low > y > high
    assert text == "predicted: predicted 0.0400, observed 0.0500, 500 rows"


def test_calibration_plot_of_a_bin_without_interval_shows_a_dot() -> None:
    no_interval = {**BIN, "low": None, "high": None}
    ((_, y, _, low, high, _),) = calibration_plot("t", [("predicted", "after", [no_interval])], "", SIZE).dots
    assert low == high == y


def test_calibration_plot_of_zero_rates_succeeds() -> None:
    zero = {"predicted": 0.0, "observed": 0.0, "low": 0.0, "high": 0.0, "rows": 5}
    assert calibration_plot("t", [("predicted", "after", [zero])], "", SIZE).dots
