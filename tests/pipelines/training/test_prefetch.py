from __future__ import annotations

import threading
from collections.abc import Generator, Iterator

import pytest

from pipelines.training.prefetch import SharedIterator, ordered_map, prefetch


@pytest.fixture(autouse=True)
def _no_thread_remains() -> Iterator[None]:
    before = {thread.ident for thread in threading.enumerate()}
    yield
    assert {thread.ident for thread in threading.enumerate()} <= before  # Threads of other tests may have ended.


@pytest.mark.parametrize("count", [1, 3, 100])
def test_prefetch_yields_the_same_items(count: int) -> None:
    assert list(prefetch((n for n in range(20)), count)) == list(range(20))


def test_prefetch_runs_at_most_count_items_ahead() -> None:
    produced: list[int] = []

    def items() -> Generator[int, None, None]:
        for n in range(100):
            produced.append(n)
            yield n

    prefetched = prefetch(items(), 5)
    next(prefetched)
    next(prefetched)
    prefetched.close()
    assert len(produced) <= 7


def test_prefetch_raises_an_error_after_the_items_before_it() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        yield 2
        raise OSError("gone")

    prefetched = prefetch(items(), 5)
    assert [next(prefetched), next(prefetched)] == [1, 2]
    with pytest.raises(OSError, match="gone"):
        next(prefetched)


def test_prefetch_when_closed_closes_its_generator_in_the_thread() -> None:
    closed_in_thread = []

    def items() -> Generator[int, None, None]:
        try:
            while True:
                yield 1
        finally:
            closed_in_thread.append(threading.current_thread() is not threading.main_thread())

    prefetched = prefetch(items(), 3)
    next(prefetched)
    prefetched.close()
    assert closed_in_thread == [True]


@pytest.mark.parametrize("threads", [1, 4])
def test_ordered_map_yields_results_in_task_order_even_if_a_later_task_finishes_first(threads: int) -> None:
    later_task_done = threading.Event()

    def square(task: int) -> int:
        if task == 0 and threads > 1:
            later_task_done.wait(5)
        if task == 1:
            later_task_done.set()
        return task * task

    assert list(ordered_map(square, range(10), threads, lambda task: 1, 4)) == [n * n for n in range(10)]


def test_ordered_map_starts_no_more_tasks_than_the_size_limit_allows() -> None:
    started: list[int] = []
    results = ordered_map(lambda task: started.append(task) or task, range(50), 8, lambda task: 10, 30)
    next(results)
    results.close()
    assert len(started) <= 4


def test_ordered_map_runs_a_task_larger_than_the_size_limit() -> None:
    assert list(ordered_map(lambda task: task, range(3), 2, lambda task: 100, 10)) == [0, 1, 2]


def test_ordered_map_raises_the_error_of_a_task_after_the_results_before_it() -> None:
    def fail_at_3(task: int) -> int:
        if task == 3:
            raise OSError("task 3")
        return task

    results = ordered_map(fail_at_3, range(10), 2, lambda task: 1, 3)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="task 3"):
        next(results)


def test_shared_iterator_serves_reservations_in_order_even_if_a_later_thread_asks_first() -> None:
    shared = SharedIterator(iter(range(10)))
    first, second, third = shared.reserve(3), shared.reserve(0), shared.reserve(4)
    results: dict[str, list[int]] = {}
    thread = threading.Thread(target=lambda: results.update(third=third()))
    thread.start()
    results |= {"first": first(), "second": second()}
    thread.join(5)
    assert results == {"first": [0, 1, 2], "second": [], "third": [3, 4, 5, 6]}


def test_shared_iterator_after_an_error_does_not_block_later_reservations() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    shared = SharedIterator(items())
    first, second = shared.reserve(2), shared.reserve(2)
    with pytest.raises(OSError, match="gone"):
        first()
    assert second() == []
