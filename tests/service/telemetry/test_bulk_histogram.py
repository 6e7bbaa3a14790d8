"""BulkHistogram counts the same as prometheus_client's histogram with one observation per value."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import Metric

from service.telemetry.bulk_histogram import MAX_SAMPLED_ROWS, BulkHistogram

EDGES = (0.0, 0.125, 0.5, 1.0, 4.0)


def samples(metrics: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for metric in metrics
        for sample in metric.samples
        if not sample.name.endswith("_created")
    }


values = arrays.arrays(
    np.float32,
    st.tuples(st.integers(0, MAX_SAMPLED_ROWS), st.just(2)),
    elements=st.sampled_from(EDGES) | st.floats(-1, 10, width=32),
)


@given(st.lists(values, max_size=4))
def test_bulk_histogram_equals_prometheus_histogram(requests: list[npt.NDArray[np.float32]]) -> None:
    bulk = BulkHistogram("score", "Scores.", EDGES, None)
    reference = Histogram("score", "Scores.", ["model", "task"], buckets=EDGES, registry=CollectorRegistry())
    for request in requests:
        bulk.observe("feed", ["like", "click"], request)
        for like, click in request.tolist():
            reference.labels("feed", "like").observe(like)
            reference.labels("feed", "click").observe(click)
    counted, expected = samples(bulk.collect()), samples(reference.collect())
    assert {key: counted[key] for key in expected} == pytest.approx(expected)


def test_observe_large_batch_samples_rows_evenly() -> None:
    bulk = BulkHistogram("score", "Scores.", EDGES, None)
    bulk.observe("feed", ["click"], np.linspace(0.0, 1.0, 500, dtype=np.float32)[:, None])
    counted = samples(bulk.collect())
    assert counted["score_count", "feed", "click"] == 500 // 16 + 1 <= MAX_SAMPLED_ROWS
    assert counted["score_sum", "feed", "click"] == pytest.approx(16, abs=0.5)


def test_observe_new_task_keeps_earlier_counts() -> None:
    bulk = BulkHistogram("score", "Scores.", EDGES, None)
    single = np.ones((1, 1), np.float32)
    bulk.observe("feed", ["click"], single)
    bulk.observe("feed", ["click", "like"], np.ones((1, 2), np.float32))
    bulk.observe("feed", ["like"], single)
    bulk.observe("shop", ["click"], single)
    counted = samples(bulk.collect())
    assert counted["score_count", "feed", "click"] == 2
    assert counted["score_count", "feed", "like"] == 2
    assert counted["score_count", "shop", "click"] == 1


def _observe(folder: Path) -> None:
    BulkHistogram("score", "Scores.", EDGES, folder).observe("feed", ["click"], np.ones((3, 1), np.float32))


def test_collect_sums_all_processes_including_terminated_ones(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    for _ in range(2):
        process = spawn.Process(target=_observe, args=[tmp_path])
        process.start()
        process.join()
        assert process.exitcode == 0
    histogram = BulkHistogram("score", "Scores.", EDGES, tmp_path)
    BulkHistogram("other", "Another metric.", EDGES, tmp_path).observe("feed", ["click"], np.ones((9, 1), np.float32))
    histogram.observe("feed", ["click"], np.ones((1, 1), np.float32))
    counted = samples(histogram.collect())
    assert counted["score_count", "feed", "click"] == counted["score_bucket", "1.0", "feed", "click"] == 7
    assert counted["score_bucket", "0.5", "feed", "click"] == 0
