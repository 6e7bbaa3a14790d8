"""The queue of a log: bounds, chunks, shares of keys, and waking."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.logs.bounded_queue import BoundedQueue
from tests.support.waiting import TIMEOUT_SECONDS


def queue_of(*, wait_for_chunk: bool = False, key_share: float = 1.0) -> BoundedQueue[int]:
    return BoundedQueue(10, 1_000, 4, 400, wait_for_chunk=wait_for_chunk, key_share=key_share)


def entries_of(queue: BoundedQueue[int]) -> list[int]:
    taken = queue.take()
    queue.release(taken)
    return [queued.entry for queued in taken]


def test_chunk_ends_before_an_entry_that_exceeds_it() -> None:
    queue = queue_of()
    for entry, size in enumerate([100, 100, 350, 900, 1]):
        assert queue.put(entry, 1, size) or entry >= 3
    assert [entries_of(queue) for _ in range(3)] == [[0, 1], [2, 4], []]


def test_larger_entry_is_a_chunk_of_its_own() -> None:
    queue = queue_of()
    queue.put(0, 100, 10_000)
    assert not queue.put(1, 1, 1), "only one entry of any size may wait"
    assert entries_of(queue) == [0]
    assert queue.put(1, 1, 1)


def test_entries_count_until_they_are_released() -> None:
    queue = queue_of()
    assert all(queue.put(number, 1, 100) for number in range(10))
    assert not queue.has_room(1, 1)
    taken = queue.take()
    assert (len(taken), queue.units, queue.bytes) == (4, 10, 1_000)
    assert not queue.has_room(1, 1)
    queue.release(taken)
    assert (queue.units, queue.bytes) == (6, 600)
    assert queue.put(10, 4, 400)


def test_key_takes_its_share_only() -> None:
    queue = queue_of(key_share=0.5)
    assert [queue.put(number, 1, 10, "flood") for number in range(7)] == [True] * 5 + [False] * 2
    assert queue.put(7, 1, 10, "other")
    assert queue.put(8, 1, 10)


@pytest.mark.parametrize("wait_for_chunk", [False, True])
def test_wait_ends_with_the_first_entry_or_with_a_chunk(wait_for_chunk: bool) -> None:
    queue, woken = queue_of(wait_for_chunk=wait_for_chunk), threading.Event()

    def wait() -> None:
        queue.wait(TIMEOUT_SECONDS)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    queue.put(0, 1, 1)
    if wait_for_chunk:
        assert not queue._wake.is_set()
        queue.put(1, 3, 1)
    assert woken.wait(TIMEOUT_SECONDS)
    thread.join(TIMEOUT_SECONDS)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 1_200), st.sampled_from([None, "a", "b"]))))
def test_all_accepted_entries_are_taken_once_in_order(entries: list[tuple[int, int, str | None]]) -> None:
    queue = queue_of(key_share=0.5)
    accepted = [number for number, (units, size, key) in enumerate(entries) if queue.put(number, units, size, key)]
    taken: list[int] = []
    while chunk := entries_of(queue):
        taken += chunk
    assert taken == accepted
    assert (queue.units, queue.bytes, len(queue)) == (0, 0, 0)
