"""Threads that compute measures, and the memory that each of them holds."""

from __future__ import annotations

import os
import tracemalloc
from typing import Literal

import numpy as np
import pytest

from pipelines.config.config import EvaluationConfig
from pipelines.evaluation import threads
from pipelines.evaluation.evaluate import compute_metrics
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.spilled_columns import SpilledColumns
from pipelines.evaluation.threads import MAX_BYTES, MAX_THREADS, ROW_BYTES, results_of, thread_pool
from ranking.frozen.calibration import Calibration
from ranking.metrics import UnitDraws, bootstrap, calibration_curve, grouped
from ranking.model.gate_stats import GateStatistics
from ranking.schema import Task


@pytest.mark.parametrize(("rows", "expected"), [(0, MAX_THREADS), (4_000_000, 2), (10**7, 1), (10**9, 1)])
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


@pytest.mark.parametrize("kind", ["binary", "regression"])
@pytest.mark.parametrize("missing", [0, 1, 40_000])
def test_measures_of_a_task_hold_at_most_row_bytes(
    kind: Literal["binary", "regression"], missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The constant part, blocks of groups and rows, is small here, so that the part per row shows."""
    monkeypatch.setattr(grouped, "BLOCK_ROWS", 1 << 14)
    monkeypatch.setattr(bootstrap, "BLOCK", 1 << 10)
    rows, random = 400_000, np.random.default_rng(0)
    labels = (random.random((rows, 1)) < 0.2).astype(np.float32)
    labels[:missing] = np.nan
    task = Task(name="click", kind=kind)
    predictions = Predictions(
        (task,),
        SpilledColumns.of(labels),
        SpilledColumns.of(random.random((rows, 1), np.float32)),
        Calibration(),
        random.integers(1, 20_000, rows),
        random.integers(9, size=rows),
        np.arange(rows) // 10 + 1,
        (),
        ("part-0",),
        np.arange(rows),
        GateStatistics((task,), num_experts=1),
    )
    settings = EvaluationConfig(bootstrap=10)
    draws = UnitDraws(predictions.units, settings.bootstrap)
    tracemalloc.start()
    try:
        compute_metrics(task, predictions.task_rows(0, draws, predictions.has_label(0)), draws, settings)
        if kind == "binary":
            calibration_curve(predictions.task_rows(0, draws, predictions.has_label(0)), draws)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= ROW_BYTES * rows
