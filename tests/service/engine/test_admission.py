"""Admission control."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.admission import Admission, Permit
from service.engine.errors import QueueFullError


def admit(admission: Admission, rows: int) -> Permit:
    permit = admission.try_acquire()
    assert permit is not None
    permit.count(rows)
    return permit


def test_admission_idle_service_accepts_request_of_any_size() -> None:
    admission = Admission(max_rows=10, max_requests=5)
    permit = admit(admission, 1_000)
    assert admission.is_full()
    assert admission.try_acquire() is None
    permit.release()
    assert not admission.is_full()
    assert admission.try_acquire() is not None


def test_permit_count_beyond_max_rows_raises_queue_full() -> None:
    admission = Admission(max_rows=10, max_requests=5)
    first, second = admit(admission, 6), admit(admission, 4)
    first.release()
    third = admission.try_acquire()
    assert third is not None
    with pytest.raises(QueueFullError):
        third.count(7)
    third.release()
    second.release()
    assert (admission.rows, admission.requests) == (0, 0)


def test_admission_unparsed_request_counts_with_average() -> None:
    admission = Admission(max_rows=100, max_requests=50)
    for _ in range(200):
        admit(admission, 30).release()
    permits = [admission.try_acquire() for _ in range(5)]
    assert [permit is not None for permit in permits] == [True, True, True, False, False]


@pytest.mark.parametrize(("max_requests", "busy_requests"), [(1, 1), (2, 2), (16, 14)])
def test_admission_reserves_an_eighth_for_connections_that_are_not_busy(max_requests: int, busy_requests: int) -> None:
    admission = Admission(max_rows=1_000, max_requests=max_requests)
    admitted = [admission.try_acquire(busy=True) is not None for _ in range(max_requests)]
    assert admitted == [number < busy_requests for number in range(max_requests)]
    others = [admission.try_acquire() is not None for _ in range(max_requests)]
    assert sum(others) == max_requests - busy_requests


def test_admission_reserves_an_eighth_of_the_rows_for_connections_that_are_not_busy() -> None:
    admission = Admission(max_rows=80, max_requests=50)
    admit(admission, 70)
    assert admission.is_full(busy=True)
    assert not admission.is_full()


def test_permit_suspended_request_does_not_block_others() -> None:
    admission = Admission(max_rows=10, max_requests=1)
    slow = admission.try_acquire()
    assert slow is not None
    slow.suspend()
    other = admit(admission, 10)
    other.release()
    slow.resume()
    assert admission.try_acquire() is None
    slow.release()
    slow.resume()  # the response was sent before the body was complete
    assert (admission.rows, admission.requests) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=60))
def test_admission_any_sequence_stays_within_limits(steps: list[tuple[int, int]]) -> None:
    admission = Admission(max_rows=10, max_requests=4)
    admitted: list[tuple[Permit, int]] = []
    for rows, released in steps:
        permit = admission.try_acquire()
        if permit is not None:
            try:
                permit.count(rows)
                admitted.append((permit, rows))
            except QueueFullError:
                permit.release()
        assert admission.rows == sum(count for _, count in admitted)
        assert admission.requests == len(admitted) <= 4
        assert admission.rows <= 10 or len([count for _, count in admitted if count]) == 1
        if released < len(admitted):
            admitted.pop(released)[0].release()
