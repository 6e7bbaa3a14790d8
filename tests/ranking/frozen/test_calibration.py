"""Calibration maps from logit to logit: values, monotonicity and validation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ranking.frozen.calibration import Calibration, Floats, Isotonic, Platt

KNOTS = st.lists(st.integers(-40, 40), min_size=1, max_size=8, unique=True).map(lambda xs: [x / 4 for x in sorted(xs)])


def float_array(*values: float) -> Floats:
    return np.array(values, np.float64)


both_float_types = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def test_platt_is_linear() -> None:
    assert Platt(slope=0.5, shift=-1.0)(float_array(0, 2, -4)).tolist() == [-1.0, 0.0, -3.0]


@both_float_types
def test_platt_keeps_dtype_of_input(dtype: type[np.floating[Any]]) -> None:
    assert Platt(slope=0.5, shift=-1.0)(np.zeros(3, dtype)).dtype == dtype


ISOTONIC = Isotonic(inputs=(-2.0, 0.0, 1.0), outputs=(-3.0, -1.0, 4.0))


def test_isotonic_interpolates_linearly_between_knots() -> None:
    assert ISOTONIC(float_array(-2, -1, 0, 0.2, 1)).tolist() == pytest.approx([-3, -2, -1, 0, 4])


def test_isotonic_beyond_knots_has_slope_one() -> None:
    assert ISOTONIC(float_array(-12, 1.5, 100)).tolist() == pytest.approx([-13, 4.5, 103])


def test_isotonic_with_one_knot_is_a_shift() -> None:
    assert Isotonic(inputs=(1.0,), outputs=(3.0,))(float_array(-1, 1, 2)).tolist() == [1.0, 3.0, 4.0]


def test_isotonic_between_knots_equals_numpy_interp() -> None:
    x = np.linspace(-2, 1, 301)
    np.testing.assert_allclose(ISOTONIC(x), np.interp(x, ISOTONIC.inputs, ISOTONIC.outputs), atol=1e-12)


@both_float_types
def test_isotonic_keeps_dtype_of_input(dtype: type[np.floating[Any]]) -> None:
    assert ISOTONIC(np.zeros(3, dtype)).dtype == dtype


def test_isotonic_accepts_noncontiguous_column() -> None:
    table = np.linspace(-4, 4, 30).reshape(10, 3)
    assert ISOTONIC(table[:, 1]).tolist() == ISOTONIC(table[:, 1].copy()).tolist()


@given(KNOTS, st.data())
def test_isotonic_is_strictly_increasing_and_finite(inputs: list[float], data: st.DataObject) -> None:
    outputs = data.draw(
        st.lists(st.integers(-100, 100), min_size=len(inputs), max_size=len(inputs), unique=True).map(sorted)
    )
    calibrated = Isotonic(inputs=tuple(inputs), outputs=tuple(outputs))(np.linspace(-60, 60, 4001))
    assert np.isfinite(calibrated).all()
    assert (np.diff(calibrated) > 0).all()


def test_calibration_maps_its_tasks_and_leaves_others_unchanged() -> None:
    calibration = Calibration({"like": Platt(slope=2.0, shift=1.0)})
    calibrated = calibration(np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), ["click", "like", "watch"])
    assert calibrated.tolist() == [[1.0, 5.0, 3.0], [0.0, 1.0, 0.0]]


def test_calibration_of_task_subset_finds_columns_by_name() -> None:
    calibration = Calibration({"like": Platt(slope=2.0, shift=1.0)})
    assert calibration(np.array([[2.0]]), ["like"]).tolist() == [[5.0]]


def test_calibration_without_maps_returns_same_array() -> None:
    outputs = np.ones((4, 2))
    assert Calibration()(outputs, ["a", "b"]) is outputs


@both_float_types
def test_calibration_keeps_dtype_and_does_not_modify_outputs(dtype: type[np.floating[Any]]) -> None:
    outputs = np.ones((4, 3), dtype)
    calibration = Calibration({"click": Platt(slope=2.0, shift=1.0), "like": ISOTONIC})
    assert calibration(outputs, ["click", "like", "watch"]).dtype == dtype
    assert (outputs == 1.0).all()


def test_calibration_of_no_rows_is_empty() -> None:
    calibration = Calibration({"like": ISOTONIC})
    assert calibration(np.empty((0, 2)), ["click", "like"]).shape == (0, 2)


def test_calibration_round_trips_through_json() -> None:
    calibration = Calibration({"click": Platt(slope=0.1 + 0.2, shift=-1 / 3), "like": ISOTONIC})
    assert Calibration.from_json(calibration.to_json()).tasks == calibration.tasks


@pytest.mark.parametrize(
    ("maps", "message"),
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
def test_calibration_from_json_with_invalid_map_is_rejected(maps: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Calibration.from_json({"click": maps})
