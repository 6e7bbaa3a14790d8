"""Compute measures in threads: NumPy uses several cores only that way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

MAX_THREADS = 4
ROW_BYTES = 110
"""Bytes that a thread holds for each row of a task, if some rows have no label; else a third less."""
MAX_BYTES = 1_000_000_000
"""Bytes that the threads hold together, unless one thread needs more."""


@contextmanager
def thread_pool(rows: int) -> Iterator[ThreadPoolExecutor]:
    """Provide threads for the cores of this process; an error ends what has not begun.

    Args:
        rows: number of rows that each thread computes measures of; the more rows, the fewer threads.
    """
    affordable = max(MAX_BYTES // (ROW_BYTES * max(rows, 1)), 1)
    pool = ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), MAX_THREADS, affordable))
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
