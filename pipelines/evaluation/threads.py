"""Compute measures in threads: NumPy uses several cores only that way."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

MAX_THREADS = 4
"""A thread holds some arrays of all rows of a task, about 100 bytes per row."""


def thread_pool() -> ThreadPoolExecutor:
    """Return threads for the cores of this process, but at most ``MAX_THREADS``."""
    return ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), MAX_THREADS))


def results_of(data: Any) -> Any:
    """Return nested dictionaries with the results of the futures in them, in the same order."""
    if isinstance(data, dict):
        return {key: results_of(value) for key, value in data.items()}
    return data.result() if isinstance(data, Future) else data
