"""Work that threads do ahead of who waits for it: bounded, in order, and ended with the consumer."""

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


def prefetch(items: Generator[T, None, None], count: int) -> Generator[T, None, None]:
    """The same items, up to ``count`` of them made by a thread before they are asked for.

    An error of the generator is raised here, after the items before it. The generator is closed when this one is.
    """
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[Any]] = deque(pool.submit(next, items, END) for _ in range(count))
        try:
            while (item := waiting.popleft().result()) is not END:
                waiting.append(pool.submit(next, items, END))
                yield item
        finally:
            for future in waiting:
                future.cancel()
            pool.submit(items.close)  # after the item that is being made: the thread does one thing at a time


def ordered_map(
    function: Callable[[T], R], tasks: Iterable[T], threads: int, size: Callable[[T], int], most: int
) -> Generator[R, None, None]:
    """The function's result for each task, in order of the tasks, computed by several threads.

    Args:
        function: what threads do.
        tasks: what they do it with.
        threads: how many.
        size: of a task.
        most: a task is begun while the sizes of those begun before it and not yet taken sum to less than this.
    """
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[tuple[int, Future[R]]] = deque()
        try:
            for task in tasks:
                while sum(held for held, _ in waiting) >= most:
                    yield waiting.popleft()[1].result()
                waiting.append((size(task), pool.submit(function, task)))
            while waiting:
                yield waiting.popleft()[1].result()
        finally:
            for _, future in waiting:
                future.cancel()


class SharedIterator(Generic[T]):
    """An iterator whose items threads take in turns.

    Args:
        items: run by one thread at a time.
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._given, self._taken = 0, 0
        self._over = Condition()

    def turn(self, count: int) -> Callable[[], list[T]]:
        """The next turn: to be called once, by any thread; gives the next so many items.

        Waits for the turns before it, which threads must have begun earlier. If one of them fails, fewer items come.
        """
        mine, self._given = self._given, self._given + 1

        def take() -> list[T]:
            with self._over:
                self._over.wait_for(lambda: self._taken == mine)
                try:
                    return list(islice(self._items, count))
                finally:
                    self._taken += 1
                    self._over.notify_all()

        return take
