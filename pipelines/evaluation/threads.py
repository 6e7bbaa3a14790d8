"""Compute measures in threads: NumPy uses several cores only that way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

MAX_THREADS = 4
"""A thread holds some arrays of all rows of a task, about 100 bytes per row."""


@contextmanager
def thread_pool() -> Iterator[ThreadPoolExecutor]:
    """Provide threads for the cores of this process, but at most ``MAX_THREADS``; an error ends what has not begun."""
    pool = ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), MAX_THREADS))
    try:
        yield pool
        pool.shutdown()
    finally:
        pool.shutdown(cancel_futures=True)


def results_of(data: Any) -> Any:
    """Return nested dictionaries with the results of the futures in them, in the same order."""
    if isinstance(data, dict):
        return {key: results_of(value) for key, value in data.items()}
    return data.result() if isinstance(data, Future) else data
