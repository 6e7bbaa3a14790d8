"""Who may come in beside whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.admission import Admission, Permit
from service.engine.errors import QueueFullError


def admitted(admission: Admission, rows: int) -> Permit:
    ticket = admission.try_acquire()
    assert ticket is not None
    ticket.count(rows)
    return ticket


def test_one_request_may_always_enter_an_empty_service() -> None:
    admission = Admission(max_rows=10, max_requests=5)
    ticket = admitted(admission, 1_000)
    assert admission.full
    assert admission.try_acquire() is None
    ticket.release()
    assert not admission.full
    assert admission.try_acquire() is not None


def test_candidates_are_bounded_exactly_once_they_are_known() -> None:
    admission = Admission(max_rows=10, max_requests=5)
    first, second = admitted(admission, 6), admitted(admission, 4)
    first.release()
    third = admission.try_acquire()
    assert third is not None
    with pytest.raises(QueueFullError):
        third.count(7)
    third.release()
    second.release()
    assert (admission.rows, admission.requests) == (0, 0)


def test_a_request_that_is_not_read_yet_counts_for_what_others_had() -> None:
    admission = Admission(max_rows=100, max_requests=50)
    for _ in range(200):
        admitted(admission, 30).release()
    tickets = [admission.try_acquire() for _ in range(5)]
    assert [ticket is not None for ticket in tickets] == [True, True, True, False, False]


def test_requests_are_bounded_too() -> None:
    admission = Admission(max_rows=100, max_requests=2)
    tickets = [admission.try_acquire() for _ in range(3)]
    assert [ticket is not None for ticket in tickets] == [True, True, False]


def test_a_request_that_does_not_come_keeps_nobody_out() -> None:
    admission = Admission(max_rows=10, max_requests=1)
    slow = admission.try_acquire()
    assert slow is not None
    slow.suspend()
    other = admitted(admission, 10)
    other.release()
    slow.restore()
    assert admission.try_acquire() is None
    slow.release()
    slow.restore()  # it was answered before all of it had come
    assert (admission.rows, admission.requests) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), max_size=60))
def test_it_never_holds_more_than_it_may_unless_it_is_one_and_forgets_nobody(steps: list[tuple[int, int]]) -> None:
    admission = Admission(max_rows=10, max_requests=4)
    inside: list[tuple[Permit, int]] = []
    for rows, leaver in steps:
        ticket = admission.try_acquire()
        if ticket is not None:
            try:
                ticket.count(rows)
                inside.append((ticket, rows))
            except QueueFullError:
                ticket.release()
        assert admission.rows == sum(count for _, count in inside)
        assert admission.requests == len(inside) <= 4
        assert admission.rows <= 10 or len([count for _, count in inside if count]) == 1
        if leaver < len(inside):
            inside.pop(leaver)[0].release()
