"""Verification of golden scores by backend."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ranking
from ranking.encoding.request_batch import RequestBatch
from ranking.errors import BundleError
from service.backends.base import Backend, Scores
from service.backends.select import select_backend
from service.models.loader import verify_golden_scores


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
