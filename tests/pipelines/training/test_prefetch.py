from __future__ import annotations

import threading
from collections.abc import Generator, Iterator

import pytest

from pipelines.training.prefetch import SharedIterator, ordered_map, prefetch


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = {thread.ident for thread in threading.enumerate()}
    yield
    assert {thread.ident for thread in threading.enumerate()} == before


class TestAhead:
    @pytest.mark.parametrize("count", [1, 3, 100])
    def test_gives_the_same_items(self, count: int) -> None:
        assert list(prefetch((n for n in range(20)), count)) == list(range(20))

    def test_makes_no_more_than_asked_for_early(self) -> None:
        made: list[int] = []

        def items() -> Generator[int, None, None]:
            for n in range(100):
                made.append(n)
                yield n

        early = prefetch(items(), 5)
        next(early)
        next(early)
        early.close()
        assert len(made) <= 7

    def test_raises_an_error_after_the_items_before_it(self) -> None:
        def items() -> Generator[int, None, None]:
            yield 1
            yield 2
            raise OSError("gone")

        early = prefetch(items(), 5)
        assert [next(early), next(early)] == [1, 2]
        with pytest.raises(OSError, match="gone"):
            next(early)

    def test_closes_what_it_reads_when_it_is_closed(self) -> None:
        closed = []

        def items() -> Generator[int, None, None]:
            try:
                while True:
                    yield 1
            finally:
                closed.append(threading.current_thread() is not threading.main_thread())

        early = prefetch(items(), 3)
        next(early)
        early.close()
        assert closed == [True]


class TestInOrder:
    @pytest.mark.parametrize("threads", [1, 4])
    def test_gives_results_in_order_of_the_tasks_whichever_is_done_first(self, threads: int) -> None:
        later = threading.Event()

        def work(task: int) -> int:
            if task == 0 and threads > 1:
                later.wait(5)
            if task == 1:
                later.set()
            return task * task

        assert list(ordered_map(work, range(10), threads, lambda task: 1, 4)) == [n * n for n in range(10)]

    def test_begins_no_more_than_it_may_hold(self) -> None:
        begun: list[int] = []
        results = ordered_map(lambda task: begun.append(task) or task, range(50), 8, lambda task: 10, 30)
        next(results)
        results.close()
        assert len(begun) <= 4

    def test_a_task_larger_than_the_limit_is_done_alone(self) -> None:
        assert list(ordered_map(lambda task: task, range(3), 2, lambda task: 100, 10)) == [0, 1, 2]

    def test_raises_the_error_of_a_task(self) -> None:
        def work(task: int) -> int:
            if task == 3:
                raise OSError("task 3")
            return task

        results = ordered_map(work, range(10), 2, lambda task: 1, 3)
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(OSError, match="task 3"):
            next(results)


class TestTurns:
    def test_are_taken_in_their_order_whichever_thread_comes_first(self) -> None:
        turns = SharedIterator(iter(range(10)))
        first, second, third = turns.reserve(3), turns.reserve(0), turns.reserve(4)
        taken: dict[str, list[int]] = {}
        late = threading.Thread(target=lambda: taken.update(third=third()))
        late.start()
        taken |= {"first": first(), "second": second()}
        late.join(5)
        assert taken == {"first": [0, 1, 2], "second": [], "third": [3, 4, 5, 6]}

    def test_one_that_fails_holds_nobody_up(self) -> None:
        def items() -> Iterator[int]:
            yield 1
            raise OSError("gone")

        turns = SharedIterator(items())
        first, second = turns.reserve(2), turns.reserve(2)
        with pytest.raises(OSError, match="gone"):
            first()
        assert second() == []
