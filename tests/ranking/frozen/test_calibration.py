"""Maps from logit to logit: what they give, that they rise, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ranking.frozen.calibration import Calibration, Floats, Isotonic, Platt

KNOTS = st.lists(st.integers(-40, 40), min_size=1, max_size=8, unique=True).map(lambda xs: [x / 4 for x in sorted(xs)])


def numbers(*values: float) -> Floats:
    return np.array(values, np.float64)


of_both_types = pytest.mark.parametrize("kind", [np.float32, np.float64])


class TestPlatt:
    def test_is_a_line(self) -> None:
        assert Platt(slope=0.5, shift=-1.0)(numbers(0, 2, -4)).tolist() == [-1.0, 0.0, -3.0]

    @of_both_types
    def test_keeps_the_type_of_its_input(self, kind: type[np.floating[Any]]) -> None:
        assert Platt(slope=0.5, shift=-1.0)(np.zeros(3, kind)).dtype == kind


class TestIsotonic:
    MAP = Isotonic(inputs=(-2.0, 0.0, 1.0), outputs=(-3.0, -1.0, 4.0))

    def test_goes_through_its_knots_in_straight_lines(self) -> None:
        assert self.MAP(numbers(-2, -1, 0, 0.2, 1)).tolist() == pytest.approx([-3, -2, -1, 0, 4])

    def test_goes_on_with_slope_1_beyond_them(self) -> None:
        assert self.MAP(numbers(-12, 1.5, 100)).tolist() == pytest.approx([-13, 4.5, 103])

    def test_of_one_knot_is_a_shift(self) -> None:
        assert Isotonic(inputs=(1.0,), outputs=(3.0,))(numbers(-1, 1, 2)).tolist() == [1.0, 3.0, 4.0]

    def test_is_that_of_numpy_between_the_knots(self) -> None:
        x = np.linspace(-2, 1, 301)
        np.testing.assert_allclose(self.MAP(x), np.interp(x, self.MAP.inputs, self.MAP.outputs), atol=1e-12)

    @of_both_types
    def test_keeps_the_type_of_its_input(self, kind: type[np.floating[Any]]) -> None:
        assert self.MAP(np.zeros(3, kind)).dtype == kind

    def test_takes_a_column_out_of_a_table_as_it_lies(self) -> None:
        table = np.linspace(-4, 4, 30).reshape(10, 3)
        assert self.MAP(table[:, 1]).tolist() == self.MAP(table[:, 1].copy()).tolist()

    @given(KNOTS, st.data())
    @settings(max_examples=100, deadline=None)
    def test_rises_strictly_and_is_finite_everywhere(self, inputs: list[float], data: st.DataObject) -> None:
        outputs = data.draw(
            st.lists(st.integers(-100, 100), min_size=len(inputs), max_size=len(inputs), unique=True).map(sorted)
        )
        found = Isotonic(inputs=tuple(inputs), outputs=tuple(outputs))(np.linspace(-60, 60, 4001))
        assert np.isfinite(found).all()
        assert (np.diff(found) > 0).all()


class TestCalibration:
    def test_maps_the_tasks_it_knows_and_leaves_the_others(self) -> None:
        calibration = Calibration({"like": Platt(slope=2.0, shift=1.0)})
        found = calibration(np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), ["click", "like", "watch"])
        assert found.tolist() == [[1.0, 5.0, 3.0], [0.0, 1.0, 0.0]]

    def test_finds_its_task_wherever_it_stands(self) -> None:
        calibration = Calibration({"like": Platt(slope=2.0, shift=1.0)})
        assert calibration(np.array([[2.0]]), ["like"]).tolist() == [[5.0]]

    def test_of_nothing_gives_back_what_it_got(self) -> None:
        outputs = np.ones((4, 2))
        assert Calibration()(outputs, ["a", "b"]) is outputs

    @of_both_types
    def test_leaves_the_outputs_and_their_type_as_they_are(self, kind: type[np.floating[Any]]) -> None:
        outputs = np.ones((4, 3), kind)
        calibration = Calibration({"click": Platt(slope=2.0, shift=1.0), "like": TestIsotonic.MAP})
        assert calibration(outputs, ["click", "like", "watch"]).dtype == kind
        assert (outputs == 1.0).all()

    def test_of_no_rows_is_empty(self) -> None:
        calibration = Calibration({"like": TestIsotonic.MAP})
        assert calibration(np.empty((0, 2)), ["click", "like"]).shape == (0, 2)

    def test_comes_back_from_json_as_it_was(self) -> None:
        calibration = Calibration({"click": Platt(slope=0.1 + 0.2, shift=-1 / 3), "like": TestIsotonic.MAP})
        assert Calibration.from_json(calibration.to_json()).tasks == calibration.tasks

    @pytest.mark.parametrize(
        ("bad", "says"),
        [
            ({"kind": "platt", "slope": 0.0, "shift": 0.0}, "greater than 0"),
            ({"kind": "platt", "slope": -1.0, "shift": 0.0}, "greater than 0"),
            ({"kind": "platt", "slope": 1.0, "shift": math.inf}, "finite"),
            ({"kind": "platt", "slope": 1.0}, "Field required"),
            ({"kind": "isotonic", "inputs": [0.0, 1.0], "outputs": [0.0, math.nan]}, "finite"),
            ({"kind": "isotonic", "inputs": [0.0, 1.0], "outputs": [1.0, 1.0]}, "outputs must increase"),
            ({"kind": "isotonic", "inputs": [1.0, 0.0], "outputs": [0.0, 1.0]}, "inputs must increase"),
            ({"kind": "isotonic", "inputs": [0.0, 1.0], "outputs": [0.0]}, "2 inputs, but 1 outputs"),
            ({"kind": "isotonic", "inputs": [], "outputs": []}, "at least 1 item"),
            ({"kind": "beta", "a": 1.0}, "'platt', 'isotonic'"),
        ],
    )
    def test_that_does_not_rise_or_is_not_finite_is_refused(self, bad: dict[str, Any], says: str) -> None:
        with pytest.raises(ValidationError, match=says):
            Calibration.from_json({"click": bad})
