"""The circuit breaker opens after consecutive failures, allows probes, and closes when one succeeds."""

from __future__ import annotations

import pytest

from service.feature_store.lookup import CircuitBreaker


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace ``time.monotonic`` by the single number in the returned list."""
    now = [100.0]
    monkeypatch.setattr("service.feature_store.lookup.time.monotonic", lambda: now[0])
    return now


def open_breaker(clock: list[float]) -> CircuitBreaker:
    breaker = CircuitBreaker(failures=3, seconds=2.0)
    assert [breaker.record_failure() for _ in range(3)] == [False, False, True]
    return breaker


def test_breaker_opens_after_consecutive_failures(clock: list[float]) -> None:
    breaker = CircuitBreaker(failures=3, seconds=2.0)
    breaker.record_failure()
    breaker.record_failure()
    assert breaker.allows()
    assert breaker.record_failure()
    assert not breaker.allows()


def test_breaker_with_successes_between_failures_stays_closed(clock: list[float]) -> None:
    breaker = CircuitBreaker(failures=3, seconds=2.0)
    for _ in range(5):
        assert not breaker.record_failure()
        assert not breaker.record_failure()
        assert not breaker.record_success()  # it was not open
    assert breaker.allows()


def test_open_breaker_allows_one_probe_per_interval(clock: list[float]) -> None:
    breaker = open_breaker(clock)
    clock[0] += 1.9
    assert not breaker.allows()
    clock[0] += 0.1
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    assert not breaker.record_failure()  # it was open already
    clock[0] += 2.0
    assert [breaker.allows() for _ in range(3)] == [True, False, False]


def test_successful_probe_closes_the_breaker(clock: list[float]) -> None:
    breaker = open_breaker(clock)
    clock[0] += 2.0
    assert breaker.allows()
    assert breaker.record_success()
    assert [breaker.allows() for _ in range(3)] == [True, True, True]
    assert [breaker.record_failure() for _ in range(3)] == [False, False, True]  # the count restarts


def test_open_breaker_allows_the_next_probe_without_a_result_of_the_last(clock: list[float]) -> None:
    breaker = open_breaker(clock)
    clock[0] += 2.0
    assert breaker.allows()
    clock[0] += 2.0
    assert breaker.allows()
