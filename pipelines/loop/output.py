"""A joined log: a folder per run, which appears by one rename, with a file per day and version.

run-000001/day=2026-01-31/version-3.parquet    rows
run-000001/_join.json                          state after the run; only the newest run has one
run-000001/_requests.npy                       hashes of the ids of requests, likewise
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.data.row_group_writer import RowGroupWriter
from pipelines.data.splits import local_days
from pipelines.loop import request_ids
from pipelines.loop.folder_locks import lock_folder
from pipelines.loop.state import STATE, JoinState
from ranking.artifacts.atomic_files import atomic_directory, write_errors


@contextmanager
def lock_log(log: Path) -> Iterator[None]:
    """Create the folder of a joined log and exclude other writers.

    Raises:
        OutputError: it cannot be written, or another process writes to it.
    """
    with write_errors(log):
        log.mkdir(parents=True, exist_ok=True)
    with lock_folder(log, f"{log}: another 'ranker join' or 'ranker forget' writes to it; wait for it"):
        yield


@contextmanager
def new_run(log: Path, number: int) -> Iterator[Path]:
    """Yield the draft of the folder of a run, which appears in the log on success; drafts of ended processes go.

    Raises:
        OutputError: the log cannot be written.
    """
    folder = log / f"run-{number:06d}"
    _remove_drafts(log)
    with atomic_directory(folder) as draft:
        yield draft
    for file in (*log.glob(f"run-*/{STATE}"), *log.glob(f"run-*/{request_ids.FILE}")):
        if file.parent != folder:
            file.unlink(missing_ok=True)


def _remove_drafts(log: Path) -> None:
    for draft in log.iterdir():
        if re.match(r"\.run-\d+-", draft.name):
            shutil.rmtree(draft, ignore_errors=True)


class RunWriter:
    """Writes the rows of a run.

    Args:
        folder: draft of the folder of the run.
        time: name of the time column.
    """

    def __init__(self, folder: Path, time: str) -> None:
        self._folder, self._time = folder, time
        self._writers: dict[Path, RowGroupWriter] = {}

    def write(self, rows: pa.Table, version: str) -> None:
        """Add rows of one version; their columns and types must be the same in each call for it."""
        days = local_days(rows[self._time])
        for day in pc.unique(days).to_pylist():
            path = self._folder / f"day={day}" / f"version-{version}.parquet"
            if path not in self._writers:
                path.parent.mkdir(exist_ok=True)
                self._writers[path] = RowGroupWriter(path, compression="zstd")
            self._writers[path].write(rows.filter(pc.equal(days, day)))

    def close(self, state: JoinState) -> None:
        """Write all rows, and the state after the run."""
        for writer in self._writers.values():
            writer.close()
        state.write(self._folder)
