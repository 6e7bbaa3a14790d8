"""The order in which the scheduler forms batches, without threads and clocks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.request import FeatureRequest, RawFeatures
from service.engine.scheduler import QueueEntry, Scheduler
from service.telemetry.stage_timer import StageTimer


def candidates(count: int) -> FeatureRequest:
    """Return a request whose candidates have their positions as ids."""
    return FeatureRequest({"item": RawFeatures(np.arange(count), {})}, [count])


def assert_rows(part: QueueEntry, start: int, stop: int) -> None:
    ids = part.batch_features.owners["item"].ids
    assert ids is not None
    assert list(ids) == list(range(start, stop))


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def entry(loop: asyncio.AbstractEventLoop, rows: int, key: Any = "all tasks", deadline: float = math.inf) -> QueueEntry:
    return QueueEntry(key, candidates(rows), StageTimer(), deadline, loop.create_future())


def take(queue: Scheduler, now: float = 0.0) -> list[QueueEntry]:
    batch, expired = queue.take(now)
    assert not expired
    return batch


def ranges(batch: list[QueueEntry], names: dict[QueueEntry, str]) -> list[tuple[str, int, int]]:
    return [(names[part], part.start, part.stop) for part in batch]


def test_take_fills_batch_and_splits_last_request(loop: asyncio.AbstractEventLoop) -> None:
    queue = Scheduler(10)
    a, b, c = entry(loop, 4), entry(loop, 4), entry(loop, 4)
    names = {a: "a", b: "b", c: "c"}
    for request in names:
        queue.add(request)
    batch = take(queue)
    assert ranges(batch, names) == [("a", 0, 4), ("b", 0, 4), ("c", 0, 2)]
    for part, rows in zip(batch, (4, 4, 2), strict=True):
        assert_rows(part, 0, rows)
    (rest,) = take(queue)
    assert_rows(rest, 2, 4)
    assert not queue
    assert take(queue) == []


def test_take_split_request_continues_before_later_arrivals(loop: asyncio.AbstractEventLoop) -> None:
    queue = Scheduler(10)
    names = {entry(loop, 6): "first", entry(loop, 6): "second", entry(loop, 6): "third"}
    for request in names:
        queue.add(request)
    assert ranges(take(queue), names) == [("first", 0, 6), ("second", 0, 4)]
    late = entry(loop, 1)
    queue.add(late)
    assert ranges(take(queue), names | {late: "late"}) == [("second", 4, 6), ("third", 0, 6), ("late", 0, 1)]


def test_take_batch_contains_one_key(loop: asyncio.AbstractEventLoop) -> None:
    queue = Scheduler(10)
    names = {entry(loop, 2, "click"): "a", entry(loop, 2, "like"): "b", entry(loop, 2, "click"): "c"}
    for request in names:
        queue.add(request)
    assert ranges(take(queue), names) == [("a", 0, 2), ("c", 0, 2)]
    assert ranges(take(queue), names) == [("b", 0, 2)]


def test_take_split_quantum_finishes_before_next_begins(loop: asyncio.AbstractEventLoop) -> None:
    queue = Scheduler(100)
    names = {entry(loop, 10): "small", entry(loop, 1000): "large", entry(loop, 10): "newcomer"}
    small, large, newcomer = names
    queue.add(small)
    queue.add(large)
    assert ranges(take(queue), names) == [("small", 0, 10), ("large", 0, 90)]
    queue.add(newcomer)
    assert ranges(take(queue), names) == [("large", 90, 180), ("newcomer", 0, 10)]
    assert ranges(take(queue), names) == [("large", 180, 280)]


@pytest.mark.parametrize("key", ["all tasks", "one task"])
def test_take_small_requests_overtake_large_one(loop: asyncio.AbstractEventLoop, key: str) -> None:
    queue = Scheduler(1000)
    large = entry(loop, 4000)
    queue.add(large)
    assert [part.batch_rows for part in take(queue)] == [1000]
    small = [entry(loop, 10, key) for _ in range(20)]
    for request in small:
        queue.add(request)
    assert take(queue)[:20] == small


def test_take_large_request_progresses_under_full_load(loop: asyncio.AbstractEventLoop) -> None:
    queue = Scheduler(100)
    large = entry(loop, 400)
    queue.add(large)
    for _ in range(20):  # clients that send the next request after each response
        queue.add(entry(loop, 10))
    batches = 0
    while large.stop < large.rows:
        for part in take(queue):
            if part is not large:
                queue.add(entry(loop, 10))
        batches += 1
        assert batches <= 4 * (2 + 1 + 1)  # per quantum: queued requests, as many new rows, its own


def test_take_large_request_delays_small_ones_by_at_most_one_batch(loop: asyncio.AbstractEventLoop) -> None:
    """A large request that has waited for long gets one quantum, not all of its remaining rows."""
    queue = Scheduler(100)
    queue.add(entry(loop, 10_000))
    arrived: dict[QueueEntry, int] = {}
    waited = []
    for batch in range(300):
        for _ in range(3):  # 30 of 100 rows per batch, so that the large request fits too
            small = entry(loop, 10)
            arrived[small] = batch
            queue.add(small)
        waited += [batch - arrived[part] for part in take(queue) if part in arrived]
    assert len(waited) >= 890
    assert max(waited) <= 1


def test_take_expired_request_is_returned_separately(loop: asyncio.AbstractEventLoop) -> None:
    queue = Scheduler(10)
    expired, in_time = entry(loop, 3, deadline=5.0), entry(loop, 3, deadline=7.0)
    queue.add(expired)
    queue.add(in_time)
    batch, dropped = queue.take(now=6.0)
    assert dropped == [expired]
    assert batch == [in_time]
    queue.add(entry(loop, 3, deadline=5.0))
    batch, dropped = queue.take(now=6.0)
    assert (batch, len(dropped), bool(queue)) == ([], 1, False)


def test_take_started_request_does_not_expire(loop: asyncio.AbstractEventLoop) -> None:
    queue = Scheduler(10)
    queue.add(entry(loop, 15, deadline=5.0))
    assert sum(part.batch_rows for now in (4.0, 6.0) for part in take(queue, now)) == 15


def test_remove_drops_remaining_rows(loop: asyncio.AbstractEventLoop) -> None:
    queue = Scheduler(10)
    large, small = entry(loop, 25), entry(loop, 5)
    queue.add(large)
    take(queue)
    queue.add(small)
    queue.remove(large)
    assert take(queue) == [small]
    queue.remove(large)
    queue.remove(small)
    assert not queue


steps: st.SearchStrategy[list[tuple[str, Any]]] = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.tuples(st.integers(1, 70), st.sampled_from("abc"))),
        st.tuples(st.just("take"), st.none()),
        st.tuples(st.just("remove"), st.integers(0, 10)),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 20))
def test_take_any_arrivals_are_scheduled_completely_and_without_starvation(
    steps: list[tuple[str, Any]], max_rows: int
) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    queue = Scheduler(max_rows)
    entries: list[QueueEntry] = []
    queued_at: dict[QueueEntry, int] = {}
    scheduled: dict[QueueEntry, int] = {}
    removed: set[QueueEntry] = set()
    scheduled_rows = 0

    def check_batch() -> None:
        nonlocal scheduled_rows
        waiting = list(queue)
        batch = take(queue)
        assert batch
        key, rows = batch[0].key, sum(part.batch_rows for part in batch)
        assert rows <= max_rows
        assert rows == max_rows or not any(other.key == key for other in queue), "a batch was not filled"
        assert len(set(batch)) == len(batch)
        for other in waiting:  # after n scheduled rows, no new request overtakes a quantum of n rows
            quantum = min(other.rows, max_rows)
            if scheduled[other] == 0:
                assert queued_at[batch[0]] < queued_at[other] + quantum or batch[0] is other
        for part in batch:
            assert part.key == key
            assert part not in removed
            assert part.start == scheduled[part] < part.stop
            assert_rows(part, part.start, part.stop)
            scheduled[part] = part.stop
        scheduled_rows += rows

    for step, value in steps:
        if step == "add":
            new = entry(loop, *value)
            entries.append(new)
            queued_at[new], scheduled[new] = scheduled_rows, 0
            queue.add(new)
        elif step == "remove" and value < len(entries):
            queue.remove(entries[value])
            if scheduled[entries[value]] < entries[value].rows:
                removed.add(entries[value])
        elif step == "take" and queue:
            check_batch()
    while queue:
        check_batch()
    assert all(scheduled[request] == request.rows for request in entries if request not in removed)
