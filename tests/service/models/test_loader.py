"""Verification of golden scores by backend, and the warm-up."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ranking
from ranking.encoding.request_batch import RequestBatch
from ranking.errors import BundleError
from service.backends.base import Backend, Scores
from service.backends.select import select_backend
from service.engine.request_encoder import RequestEncoder
from service.models import loader
from service.models.loader import verify_golden_scores, warm_up
from service.settings import Settings


class OffsetBackend:
    """Adds an offset to one score of another backend."""

    name = "offset"

    def __init__(self, backend: Backend, offset: float) -> None:
        self._backend, self._offset = backend, offset

    def scores(self, batch: RequestBatch, tasks: Sequence[str]) -> Scores:
        scores = self._backend.scores(batch, tasks)
        scores[3, 0] += self._offset
        return scores


@pytest.mark.parametrize("backend", ["torch", "onnxruntime"])
def test_verify_golden_scores_every_backend_passes(bundle: Path, backend: str) -> None:
    ranker = ranking.load(bundle)
    verify_golden_scores(select_backend(ranker, backend), ranker, bundle)  # type: ignore[arg-type]


def test_verify_golden_scores_different_score_raises_with_task(bundle: Path) -> None:
    ranker = ranking.load(bundle)
    task = ranker.schema.task_names[0]
    message = f"golden rows score differently on offset \\(task '{task}', by up to 0.01"
    with pytest.raises(BundleError, match=message):
        verify_golden_scores(OffsetBackend(select_backend(ranker), 0.01), ranker, bundle)


def test_verify_golden_scores_unreadable_rows_raise(bundle: Path, tmp_path: Path) -> None:
    ranker = ranking.load(bundle)
    altered = shutil.copytree(bundle, tmp_path / "bundle")
    rows = pq.read_table(altered / "golden.parquet")
    inputs = [{name: value for name, value in row.items() if name != "price"} for row in rows["inputs"].to_pylist()]
    pq.write_table(pa.table({"inputs": inputs, "scores": rows["scores"]}), altered / "golden.parquet")
    with pytest.raises(BundleError, match=f"{altered} contains inconsistent files: .*price.*; freeze the run again"):
        verify_golden_scores(select_backend(ranker), ranker, altered)


class RecordingBackend:
    """Records the number of requests and rows and the tasks of each batch."""

    name = "recording"

    def __init__(self) -> None:
        self.batches: set[tuple[int, int, tuple[str, ...]]] = set()

    def scores(self, batch: RequestBatch, tasks: Sequence[str]) -> Scores:
        self.batches.add((len(batch.shared), len(batch), tuple(tasks)))
        return np.zeros((len(batch), len(tasks)), np.float32)


def test_warm_up_scores_batches_of_all_sizes_and_the_likely_sets_of_tasks(bundle: Path) -> None:
    ranker, backend = ranking.load(bundle), RecordingBackend()
    golden = verify_golden_scores(select_backend(ranker), ranker, bundle)
    warm_up(ranker, RequestEncoder(ranker), backend, golden, max_rows=6)
    tasks = tuple(sorted(ranker.schema.task_names))
    sizes = {(requests, size, tasks) for size in (1, 2, 4, 6) for requests in (1, size)}
    assert backend.batches == sizes | {(1, 6, subset) for subset in [tuple(sorted(ranker.objective)), *zip(tasks)]}


def test_load_model_warms_up(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warmed_up: list[int] = []
    monkeypatch.setattr(loader, "warm_up", lambda *arguments: warmed_up.append(arguments[-1]))
    loader.load_model(Settings(repository=repository, max_batch_rows=64), "feed", 1)
    assert warmed_up == [64]
