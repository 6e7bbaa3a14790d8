"""Background threads for iterators: bounded, ordered, and stopped together with their consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from threading import Condition
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

END = object()
"""Default of ``next`` that marks the end of an iterator."""


def prefetch(items: Generator[T, None, None], count: int) -> Generator[T, None, None]:
    """Yield the items of a generator that runs up to ``count`` items ahead in a thread.

    An error of the generator is raised after the items that precede it. Closing this generator closes ``items``.
    """
    with ThreadPoolExecutor(1) as pool:
        pending: deque[Future[Any]] = deque(pool.submit(next, items, END) for _ in range(count))
        try:
            while (item := pending.popleft().result()) is not END:
                pending.append(pool.submit(next, items, END))
                yield item
        finally:
            for future in pending:
                future.cancel()
            pool.submit(items.close)  # runs after the item in progress, because the pool has one thread


def ordered_map(
    function: Callable[[T], R], tasks: Iterable[T], threads: int, size: Callable[[T], int], max_pending_size: int
) -> Generator[R, None, None]:
    """Apply a function to tasks in several threads and yield the results in task order.

    Args:
        function: function to apply; runs in a thread.
        tasks: its arguments.
        threads: number of threads.
        size: size of a task.
        max_pending_size: a task is submitted while the total size of unconsumed tasks is below this limit.
    """
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[tuple[int, Future[R]]] = deque()
        try:
            for task in tasks:
                while sum(task_size for task_size, _ in pending) >= max_pending_size:
                    yield pending.popleft()[1].result()
                pending.append((size(task), pool.submit(function, task)))
            while pending:
                yield pending.popleft()[1].result()
        finally:
            for _, future in pending:
                future.cancel()


class SharedIterator(Generic[T]):
    """Iterator that several threads consume in the order of their reservations.

    Args:
        items: the iterator; only one thread at a time advances it.
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._reserved, self._consumed = 0, 0
        self._changed = Condition()

    def reserve(self, count: int) -> Callable[[], list[T]]:
        """Reserve the next ``count`` items.

        Returns:
            Function that returns the items, to be called once, by any thread. It waits for all earlier reservations,
            which threads must have started before it. If one of those fails, it returns fewer items.
        """
        position, self._reserved = self._reserved, self._reserved + 1

        def take() -> list[T]:
            with self._changed:
                self._changed.wait_for(lambda: self._consumed == position)
                try:
                    return list(islice(self._items, count))
                finally:
                    self._consumed += 1
                    self._changed.notify_all()

        return take
