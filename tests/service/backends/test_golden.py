"""A runtime that scores otherwise than the bundle says does not serve."""

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
from service.backends.base import Backend, Precision, Scores
from service.backends.golden import require_golden
from service.backends.select import select_backend


class Off:
    """Another runtime's scores, and a little more."""

    backend = "off"

    def __init__(self, runtime: Backend, by: float, precision: Precision) -> None:
        self._runtime, self._by, self.precision = runtime, by, precision

    def scores(self, halves: RequestBatch, tasks: Sequence[str]) -> Scores:
        found = self._runtime.scores(halves, tasks)
        found[3, 0] += self._by
        return found


@pytest.mark.parametrize("backend", ["torch", "onnxruntime"])
def test_every_backend_of_a_bundle_gives_its_golden_scores(bundle: Path, backend: str) -> None:
    ranker = ranking.load(bundle)
    require_golden(select_backend(ranker, backend), ranker, bundle)  # type: ignore[arg-type]


def test_another_score_is_refused_by_task(bundle: Path) -> None:
    ranker = ranking.load(bundle)
    task = ranker.schema.task_names[0]
    with pytest.raises(BundleError, match=f"golden rows score differently on off \\(task '{task}', by up to 0.01"):
        require_golden(Off(select_backend(ranker), 0.01, "float32"), ranker, bundle)


def test_half_precision_may_differ_more(bundle: Path) -> None:
    ranker = ranking.load(bundle)
    require_golden(Off(select_backend(ranker), 0.01, "bfloat16"), ranker, bundle)
    with pytest.raises(BundleError, match="golden rows score differently"):
        require_golden(Off(select_backend(ranker), 0.5, "bfloat16"), ranker, bundle)


def test_rows_that_the_bundle_itself_cannot_read_are_refused(bundle: Path, tmp_path: Path) -> None:
    ranker = ranking.load(bundle)
    altered = shutil.copytree(bundle, tmp_path / "bundle")
    rows = pq.read_table(altered / "golden.parquet")
    inputs = [{name: value for name, value in row.items() if name != "price"} for row in rows["inputs"].to_pylist()]
    pq.write_table(pa.table({"inputs": inputs, "scores": rows["scores"]}), altered / "golden.parquet")
    with pytest.raises(BundleError, match=f"{altered} contains inconsistent files: .*price.*; freeze the run again"):
        require_golden(select_backend(ranker), ranker, altered)
