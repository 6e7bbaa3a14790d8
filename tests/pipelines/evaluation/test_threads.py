"""Threads that compute measures, and the memory that each of them holds."""

from __future__ import annotations

import os
import tracemalloc

import numpy as np
import pytest

from pipelines.evaluation import threads
from pipelines.evaluation.threads import MAX_BYTES, MAX_THREADS, ROW_BYTES, results_of, thread_pool
from ranking.metrics import binary_measures, bootstrap, calibration_curve, grouped
from tests.support.unit_draws import draw_users, labeled_scores


@pytest.mark.parametrize(("rows", "expected"), [(0, MAX_THREADS), (7_000_000, 2), (10**7, 1), (10**9, 1)])
def test_thread_pool_has_fewer_threads_for_more_rows(rows: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    started = []
    monkeypatch.setattr(threads, "ThreadPoolExecutor", lambda count: started.append(count) or _Pool())
    with thread_pool(rows):
        pass
    assert started == [expected]
    assert expected == 1 or expected * rows * ROW_BYTES <= MAX_BYTES


class _Pool:
    def shutdown(self, **_: bool) -> None:
        """Do nothing."""


def test_results_of_keeps_the_structure() -> None:
    with thread_pool(1) as pool:
        data = {"a": {"b": pool.submit(lambda: 3)}, "c": [1]}
    assert results_of(data) == {"a": {"b": 3}, "c": [1]}


def test_measures_of_a_task_hold_at_most_row_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constant part, blocks of groups and rows, is small here, so that the part per row shows."""
    monkeypatch.setattr(grouped, "BLOCK_ROWS", 1 << 14)
    monkeypatch.setattr(bootstrap, "BLOCK", 1 << 10)
    rows, random = 400_000, np.random.default_rng(0)
    draws = draw_users(random.integers(20_000, size=rows), 10)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        requests, days = np.arange(rows) // 10, random.integers(9, size=rows)
        task = labeled_scores(random.random(rows) < 0.2, random.random(rows), draws, requests, days)
        of_all_tasks = requests.nbytes + days.nbytes
        binary_measures(task, draws)
        calibration_curve(task, draws)
        peak = tracemalloc.get_traced_memory()[1] - before - of_all_tasks
    finally:
        tracemalloc.stop()
    assert peak <= ROW_BYTES * rows
