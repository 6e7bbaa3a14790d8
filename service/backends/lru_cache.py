"""What was used last, as much of it as is kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """Values by key; to be used by one thread.

    Unlike ``functools.lru_cache`` it does not hold who makes them, which the garbage collector would have to part.

    Args:
        most: how many are kept, 1 at least.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of this key, made if it is not there; the one not used for longest then goes."""
        if key in self._values:
            self._values.move_to_end(key)
        else:
            self._values[key] = make()
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        return self._values[key]
