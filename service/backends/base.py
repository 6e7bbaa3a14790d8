"""The interface of a backend, and a cache for prepared graphs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ranking.encoding.request_batch import RequestBatch

BackendName = Literal["auto", "torch", "onnxruntime", "cuda"]

Scores = npt.NDArray[np.float32]
"""Scores [candidates, tasks]."""

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class Backend(Protocol):
    """Scores candidates for one version of a model; called by one thread at a time.

    Attributes:
        name: name of the backend, a value of the setting ``backend``.
    """

    name: str

    def scores(self, batch: RequestBatch, tasks: Sequence[str]) -> Scores:
        """Return scores [candidates, tasks] float32; experts and towers of other tasks do not run."""
        ...


class LRUCache(Generic[KeyT, ValueT]):
    """Cache that evicts the least recently used value. Not thread-safe.

    Unlike ``functools.lru_cache`` it does not reference the function that creates the values. A backend that caches
    through its own methods therefore forms no reference cycle.

    Args:
        max_size: maximum number of values, at least 1.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._values: OrderedDict[KeyT, ValueT] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._values

    def clear(self) -> None:
        """Remove all values."""
        self._values.clear()

    def get(self, key: KeyT, create: Callable[[], ValueT]) -> ValueT:
        """Return the value of a key; create it if it is not cached."""
        if key in self._values:
            self._values.move_to_end(key)
        else:
            self._values[key] = create()
            if len(self._values) > self._max_size:
                self._values.popitem(last=False)
        return self._values[key]
