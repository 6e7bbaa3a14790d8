"""Choice of the units that the bootstrap draws."""

from __future__ import annotations

import numpy as np
import pytest

from ranking.metrics import SamplingUnits


def units_of(users: list[int], requests: list[int] | None = None) -> SamplingUnits:
    return SamplingUnits.of(np.array(users), None if requests is None else np.array(requests))


def sizes(units: SamplingUnits) -> list[int]:
    """Return the numbers of rows of the units, ascending."""
    return sorted(np.bincount(units.codes, minlength=units.count).tolist())


def test_units_of_known_users_are_users() -> None:
    units = units_of([9, 5, 9, 7, 5, 9], [1, 1, 2, 2, 3, 3])
    assert (units.kind, units.count) == ("user", 3)
    assert units.codes.tolist() == [2, 0, 2, 1, 0, 2]
    assert units.users.tolist() == [9, 5, 9, 7, 5, 9]


def test_units_without_users_and_requests_are_rows() -> None:
    units = units_of([0] * 5)
    assert (units.kind, units.count, sizes(units)) == ("row", 5, [1] * 5)
    assert not units.has_placeholder


def test_no_rows_have_no_units() -> None:
    assert (units_of([]).count, sizes(units_of([]))) == (0, [])


def test_units_without_users_are_requests() -> None:
    units = units_of([0] * 5, [3, 3, 4, 4, 0])
    assert (units.kind, units.count, sizes(units)) == ("request", 3, [1, 2, 2])


def test_units_of_a_placeholder_user_are_rows() -> None:
    """More than half of the rows have user 8, such as "anonymous"."""
    units = units_of([8, 8, 8, 8, 2, 2, 3])
    assert (units.kind, units.count, sizes(units)) == ("row", 6, [1, 1, 1, 1, 1, 2])
    assert units.users.tolist() == [0, 0, 0, 0, 2, 2, 3]
    assert units.has_placeholder
    assert units.take(np.array([4, 5])).has_placeholder


def test_units_of_a_placeholder_request_are_rows() -> None:
    units = units_of([0] * 6, [5, 5, 5, 5, 6, 6])
    assert (units.kind, units.count, sizes(units)) == ("row", 5, [1, 1, 1, 1, 2])


@pytest.mark.parametrize(("requests", "expected"), [(None, [1, 1, 2, 2]), ([0, 0, 0, 0, 9, 9], [2, 2, 2])])
def test_units_of_a_few_rows_without_user_are_their_rows_or_requests(
    requests: list[int] | None, expected: list[int]
) -> None:
    units = units_of([1, 1, 2, 2, 0, 0], requests)
    assert (units.kind, sizes(units)) == ("user", expected)


def test_units_of_one_row_are_that_row() -> None:
    assert units_of([4]).count == 1
