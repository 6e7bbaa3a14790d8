"""Who is scored when, on the queue alone: no threads, no clock."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.scheduler import BatchSlice, QueueEntry, Scheduler


@dataclass(frozen=True)
class Rows:
    """Work that knows which rows it is."""

    start: int
    stop: int

    def slice(self, start: int, stop: int) -> Rows:
        return Rows(self.start + start, self.start + stop)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def entry(
    loop: asyncio.AbstractEventLoop, rows: int, key: str = "all tasks", deadline: float = math.inf
) -> QueueEntry[str, Rows]:
    return QueueEntry(key, Rows(0, rows), rows, deadline, loop.create_future())


def take(queue: Scheduler[str, Rows], now: float = 0.0) -> list[BatchSlice[str, Rows]]:
    parts, late = queue.take(now)
    assert not late
    return parts


def spans(parts: list[BatchSlice[str, Rows]], names: dict[QueueEntry[str, Rows], str]) -> list[tuple[str, int, int]]:
    return [(names[part.entry], part.start, part.stop) for part in parts]


def test_requests_of_one_key_fill_a_batch_and_the_last_is_cut(loop: asyncio.AbstractEventLoop) -> None:
    queue: Scheduler[str, Rows] = Scheduler(10)
    a, b, c = entry(loop, 4), entry(loop, 4), entry(loop, 4)
    names = {a: "a", b: "b", c: "c"}
    for each in names:
        queue.add(each)
    parts = take(queue)
    assert spans(parts, names) == [("a", 0, 4), ("b", 0, 4), ("c", 0, 2)]
    assert [part.work for part in parts] == [Rows(0, 4), Rows(0, 4), Rows(0, 2)]
    (rest,) = take(queue)
    assert rest.work == Rows(2, 4)
    assert not queue
    assert take(queue) == []


def test_a_cut_request_goes_on_before_those_that_came_later(loop: asyncio.AbstractEventLoop) -> None:
    queue: Scheduler[str, Rows] = Scheduler(10)
    names = {entry(loop, 6): "first", entry(loop, 6): "second", entry(loop, 6): "third"}
    for each in names:
        queue.add(each)
    assert spans(take(queue), names) == [("first", 0, 6), ("second", 0, 4)]
    late = entry(loop, 1)
    queue.add(late)
    assert spans(take(queue), names | {late: "late"}) == [("second", 4, 6), ("third", 0, 6), ("late", 0, 1)]


def test_keys_do_not_mix(loop: asyncio.AbstractEventLoop) -> None:
    queue: Scheduler[str, Rows] = Scheduler(10)
    names = {entry(loop, 2, "click"): "a", entry(loop, 2, "like"): "b", entry(loop, 2, "click"): "c"}
    for each in names:
        queue.add(each)
    assert spans(take(queue), names) == [("a", 0, 2), ("c", 0, 2)]
    assert spans(take(queue), names) == [("b", 0, 2)]


def test_a_turn_that_was_cut_goes_on_and_ends_before_the_next_begins(loop: asyncio.AbstractEventLoop) -> None:
    queue: Scheduler[str, Rows] = Scheduler(100)
    names = {entry(loop, 10): "small", entry(loop, 1000): "large", entry(loop, 10): "newcomer"}
    small, large, newcomer = names
    queue.add(small)
    queue.add(large)
    assert spans(take(queue), names) == [("small", 0, 10), ("large", 0, 90)]
    queue.add(newcomer)
    assert spans(take(queue), names) == [("large", 90, 180), ("newcomer", 0, 10)]
    assert spans(take(queue), names) == [("large", 180, 280)]


@pytest.mark.parametrize("key", ["all tasks", "one task"])
def test_a_large_request_that_came_first_lets_small_ones_through_at_once(
    loop: asyncio.AbstractEventLoop, key: str
) -> None:
    queue: Scheduler[str, Rows] = Scheduler(1000)
    large = entry(loop, 4000)
    queue.add(large)
    assert [part.rows for part in take(queue)] == [1000]
    small = [entry(loop, 10, key) for _ in range(20)]
    for each in small:
        queue.add(each)
    assert [part.entry for part in take(queue)][:20] == small


def test_a_large_request_moves_on_while_small_ones_alone_would_fill_the_machine(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue: Scheduler[str, Rows] = Scheduler(100)
    large = entry(loop, 400)
    queue.add(large)
    for _ in range(20):  # clients: whoever is answered comes back at once
        queue.add(entry(loop, 10))
    batches = 0
    while large.taken < large.rows:
        for part in take(queue):
            if part.entry is not large:
                queue.add(entry(loop, 10))
        batches += 1
        assert batches <= 4 * (2 + 1 + 1)  # each turn: who is in line, newcomers of as many rows, its own


def test_a_large_request_makes_small_ones_wait_for_one_turn_at_most(loop: asyncio.AbstractEventLoop) -> None:
    """Also when it has waited for long: it gets its turn then, not all that is left of it."""
    queue: Scheduler[str, Rows] = Scheduler(100)
    queue.add(entry(loop, 10_000))
    arrived: dict[QueueEntry[str, Rows], int] = {}
    waited = []
    for batch in range(300):
        for _ in range(3):  # 30 of 100 rows: there is room for the large one, and nobody else to wait for
            each = entry(loop, 10)
            arrived[each] = batch
            queue.add(each)
        waited += [batch - arrived[part.entry] for part in take(queue) if part.entry in arrived]
    assert len(waited) >= 890
    assert max(waited) <= 1


def test_who_is_too_late_is_not_taken(loop: asyncio.AbstractEventLoop) -> None:
    queue: Scheduler[str, Rows] = Scheduler(10)
    late, punctual = entry(loop, 3, deadline=5.0), entry(loop, 3, deadline=7.0)
    queue.add(late)
    queue.add(punctual)
    parts, dropped = queue.take(now=6.0)
    assert dropped == [late]
    assert [part.entry for part in parts] == [punctual]
    queue.add(entry(loop, 3, deadline=5.0))
    parts, dropped = queue.take(now=6.0)
    assert (parts, len(dropped), bool(queue)) == ([], 1, False)


def test_a_deadline_is_for_the_start_of_scoring(loop: asyncio.AbstractEventLoop) -> None:
    queue: Scheduler[str, Rows] = Scheduler(10)
    queue.add(entry(loop, 15, deadline=5.0))
    assert sum(part.rows for now in (4.0, 6.0) for part in take(queue, now)) == 15


def test_what_is_left_of_a_removed_request_is_not_taken(loop: asyncio.AbstractEventLoop) -> None:
    queue: Scheduler[str, Rows] = Scheduler(10)
    large, small = entry(loop, 25), entry(loop, 5)
    queue.add(large)
    take(queue)
    queue.add(small)
    queue.remove(large)
    assert [part.entry for part in take(queue)] == [small]
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
def test_any_arrivals_are_served_whole_in_order_and_none_is_passed_for_ever(
    steps: list[tuple[str, Any]], max_rows: int
) -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    queue: Scheduler[str, Rows] = Scheduler(max_rows)
    entries: list[QueueEntry[str, Rows]] = []
    joined: dict[QueueEntry[str, Rows], int] = {}
    given_out: dict[QueueEntry[str, Rows], int] = {}
    removed: set[QueueEntry[str, Rows]] = set()
    taken = 0

    def check_batch() -> None:
        nonlocal taken
        waiting = list(queue)
        parts = take(queue)
        assert parts
        key, rows = parts[0].entry.key, sum(part.rows for part in parts)
        assert rows <= max_rows
        assert rows == max_rows or not any(other.key == key for other in queue), "a batch with room left rows behind"
        assert len({part.entry for part in parts}) == len(parts)
        for other in waiting:  # who has waited for as many rows as its turn has is not passed by newcomers
            turn = min(other.rows, max_rows)
            if given_out[other] == 0:
                assert joined[parts[0].entry] < joined[other] + turn or parts[0].entry is other
        for part in parts:
            assert part.entry.key == key
            assert part.entry not in removed
            assert part.start == given_out[part.entry] < part.stop
            assert part.work == Rows(part.start, part.stop)
            given_out[part.entry] = part.stop
        taken += rows

    for step, value in steps:
        if step == "add":
            new = entry(loop, *value)
            entries.append(new)
            joined[new], given_out[new] = taken, 0
            queue.add(new)
        elif step == "remove" and value < len(entries):
            queue.remove(entries[value])
            if given_out[entries[value]] < entries[value].rows:
                removed.add(entries[value])
        elif step == "take" and queue:
            check_batch()
    while queue:
        check_batch()
    assert all(given_out[each] == each.rows for each in entries if each not in removed)
