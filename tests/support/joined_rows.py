"""Rows that ``ranker join`` makes of a served log and feedback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipelines.jobs.join import join
from pipelines.loop.sources import LoopSources


def joined_rows(served: Path, folder: Path, feedback: Path | None = None) -> list[dict[str, Any]]:
    """Join logs with a window of an hour into a folder, and return the rows by request and position.

    Args:
        served: folder of the served log.
        folder: folder to write to.
        feedback: folder of feedback; None for an empty one.
    """
    if feedback is None:
        feedback = folder / "feedback"
        feedback.mkdir(parents=True)
    join(LoopSources(served, feedback), folder / "log", 3600)
    files = (folder / "log").glob("run-*/day=*/*.parquet")
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted(rows, key=lambda row: (row["request_id"], row["position"]))
