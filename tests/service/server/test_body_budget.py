"""``BodyBudget``: which bodies fit, and which one gives way."""

from __future__ import annotations

import pytest
from prometheus_client import Gauge

from service.server.body_budget import PACED_BYTES_PER_SECOND, BodyBudget, BodyLease


@pytest.fixture
def gauge() -> Gauge:
    return Gauge("bytes", "Held bytes.", registry=None)


@pytest.fixture
def budget(gauge: Gauge) -> BodyBudget:
    return BodyBudget(1_000_000, gauge)


def arriving(budget: BodyBudget, size: int) -> BodyLease:
    """A body of which more than these bytes will arrive."""
    lease = BodyLease(budget)
    assert lease.add(size)
    lease.wait_for_more()
    return lease


def complete(budget: BodyBudget, size: int) -> BodyLease:
    lease = BodyLease(budget)
    assert lease.add(size)
    lease.complete()
    return lease


def test_budget_counts_bytes_until_release_and_shows_them(budget: BodyBudget, gauge: Gauge) -> None:
    first, second = arriving(budget, 131_072), complete(budget, 65_536)
    assert first.add(65_536)
    assert budget.held == 262_144
    assert gauge._value.get() == 262_144
    for lease in (first, first, second):
        lease.release()
    assert budget.held == 0
    assert gauge._value.get() == 0


def test_budget_body_takes_at_most_half_of_what_others_leave(budget: BodyBudget) -> None:
    assert budget.can_hold(500_000)
    assert not budget.can_hold(500_001)
    complete(budget, 500_000)
    assert budget.can_hold(250_000)
    assert not BodyLease(budget).add(250_001)
    complete(budget, 250_000)
    assert not budget.can_hold(125_001)
    complete(budget, 100_000)
    assert BodyLease(budget).add(75_000), "small bodies fit beside large ones"


def test_budget_oldest_arriving_body_of_average_size_gives_way(budget: BodyBudget) -> None:
    small, old, young = (arriving(budget, size) for size in (1_000, 300_000, 300_000))
    rejected = []
    for lease in (small, old, young):
        lease.on_reject = lambda lease=lease: rejected.append(lease)
    assert BodyLease(budget).add(300_000)
    assert rejected == [old]
    assert old.rejected
    assert not old.add(1), "further bytes of a rejected body are discarded"
    assert budget.held == 601_000


def test_budget_growing_body_gives_way_itself_if_it_is_the_oldest(budget: BodyBudget) -> None:
    oldest, other = arriving(budget, 400_000), arriving(budget, 300_000)
    assert not oldest.add(1)
    assert oldest.rejected
    assert not other.rejected
    assert budget.held == 300_000


def test_budget_complete_bodies_never_give_way(budget: BodyBudget) -> None:
    lease = arriving(budget, 400_000)
    lease.complete()
    assert not BodyLease(budget).add(400_000)
    assert not lease.rejected


def test_budget_many_slow_bodies_cannot_keep_room_from_a_new_one(budget: BodyBudget) -> None:
    slow = [arriving(budget, 1_000) for _ in range(300)]
    while (active := [lease for lease in slow if not lease.rejected]) and len(active) > 100:
        for lease in active:
            lease.add(1_000)
    assert budget.held <= 1_000_000
    new = arriving(budget, 1_000)
    while new.size < 400_000:
        assert new.add(50_000), "the newest body displaces slow ones"
    assert budget.held <= 1_000_000


def test_budget_bodies_without_bytes_do_not_give_way(budget: BodyBudget) -> None:
    announced = [arriving(budget, 0) for _ in range(10)]
    complete(budget, 450_000)
    assert not BodyLease(budget).add(450_000)
    assert not any(lease.rejected for lease in announced)


def test_budget_released_body_that_continues_to_arrive_is_not_counted(budget: BodyBudget) -> None:
    lease = arriving(budget, 100_000)
    lease.release()
    assert lease.add(100_000)
    lease.wait_for_more()
    lease.complete()
    assert budget.held == 0
    assert BodyLease(budget).add(500_000)


def test_budget_paces_large_bodies_only_while_half_of_it_is_held(budget: BodyBudget) -> None:
    first = arriving(budget, 400_000)
    assert first.next_pause(100_000, now=10.0) == 0
    second = arriving(budget, 100_000)
    pauses = [lease.next_pause(PACED_BYTES_PER_SECOND, now=10.0) for lease in (first, second, first)]
    assert pauses == [1, 2, 3]
    assert second.next_pause(PACED_BYTES_PER_SECOND, now=20.0) == 1
    second.release()
    assert first.next_pause(100_000, now=30.0) == 0
