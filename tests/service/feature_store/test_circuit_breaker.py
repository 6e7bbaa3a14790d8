"""A breaker opens after failures in a row, lets one attempt through in a while, and closes when one succeeds."""

from __future__ import annotations

import pytest

from service.feature_store.circuit_breaker import CircuitBreaker


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time; its one number can be changed."""
    now = [100.0]
    monkeypatch.setattr("service.feature_store.circuit_breaker.time.monotonic", lambda: now[0])
    return now


def opened(clock: list[float]) -> CircuitBreaker:
    breaker = CircuitBreaker(failures=3, seconds=2.0)
    assert [breaker.failed() for _ in range(3)] == [False, False, True]
    return breaker


def test_failures_in_a_row_open_it(clock: list[float]) -> None:
    breaker = CircuitBreaker(failures=3, seconds=2.0)
    breaker.failed()
    breaker.failed()
    assert breaker.allows()
    assert breaker.failed()
    assert not breaker.allows()


def test_a_success_between_failures_does_not_let_it_open(clock: list[float]) -> None:
    breaker = CircuitBreaker(failures=3, seconds=2.0)
    for _ in range(5):
        assert not breaker.failed()
        assert not breaker.failed()
        assert not breaker.succeeded()  # nothing was open
    assert breaker.allows()


def test_an_open_one_lets_one_attempt_through_in_a_while(clock: list[float]) -> None:
    breaker = opened(clock)
    clock[0] += 1.9
    assert not breaker.allows()
    clock[0] += 0.1
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    assert not breaker.failed()  # it was open
    clock[0] += 2.0
    assert [breaker.allows() for _ in range(3)] == [True, False, False]


def test_an_attempt_that_succeeds_closes_it(clock: list[float]) -> None:
    breaker = opened(clock)
    clock[0] += 2.0
    assert breaker.allows()
    assert breaker.succeeded()
    assert [breaker.allows() for _ in range(3)] == [True, True, True]
    assert [breaker.failed() for _ in range(3)] == [False, False, True]  # counted from nothing


def test_an_attempt_of_which_nobody_hears_does_not_keep_it_open(clock: list[float]) -> None:
    breaker = opened(clock)
    clock[0] += 2.0
    assert breaker.allows()
    clock[0] += 2.0
    assert breaker.allows()
