"""Score the files of a log with the workers of an engine."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import torch

from pipelines.console import Progress
from pipelines.data.dedup import DuplicateFilter, Hashes
from pipelines.data.joined import JoinedColumns
from pipelines.data.reader import LogReader
from pipelines.engines import Engine
from pipelines.evaluation.scored_rows import PredictBaselines, ScoredRows, score_rows
from pipelines.evaluation.sources import LogRange, Scorer, resolve_scorers
from ranking.artifacts.atomic_files import os_error_text
from ranking.errors import OutputError
from ranking.temporary_folders import temporary_folder


class Job(NamedTuple):
    """What all parts of a log have in common.

    Attributes:
        folder: temporary folder for the baselines and the scored rows; another one for each job.
        model: folder of the run or bundle.
        log_range: the rows of the log to score.
        slices: names of slices.
        joined: computed columns of counters and histories, if the model has any.
        has_baselines: whether the folder has the pickled function of the baselines.
    """

    folder: Path
    model: Path
    log_range: LogRange
    slices: tuple[str, ...]
    joined: JoinedColumns | None
    has_baselines: bool

    @property
    def baselines(self) -> Path:
        """File with the pickled function of the baselines."""
        return self.folder / "baselines"

    def rows(self, number: int) -> Path:
        """Return the file with the pickled rows of a part."""
        return self.folder / f"rows-{number}"


class Part(NamedTuple):
    """A file of a log, which a worker of an engine scores.

    Attributes:
        job: the job.
        number: position among the files of the log.
        file: name of the file.
        earlier: hashes of the rows of this file that also occur earlier in the log.
    """

    job: Job
    number: int
    file: str
    earlier: Hashes | None = None


def score_parts(
    source: Scorer,
    reader: LogReader,
    log_range: LogRange,
    slices: Sequence[str],
    baselines: PredictBaselines | None,
    engine: Engine,
) -> ScoredRows:
    """Score the files of a log with an engine.

    Exact duplicates are dropped as in one process: the first pass finds rows of a file that occur in an earlier one.

    Args:
        source: the model, whose name is its path.
        reader: the log.
        log_range: the rows to score; its path is that of the reader.
        slices: slice names, each in ``Schema.sliceable``.
        baselines: see ``score_rows``.
        engine: the engine.

    Raises:
        LogError: the log cannot be used.
        OutputError: the folder for temporary files cannot be written.
    """
    reader.check_columns()  # a worker does not compare them with those of other files
    with _temporary_errors(), temporary_folder("evaluation") as folder:
        model = Path(source.name).absolute()
        job = Job(folder, model, log_range, tuple(slices), reader.joined, baselines is not None)
        if baselines is not None:
            job.baselines.write_bytes(pickle.dumps(baselines))
        parts = [Part(job, number, file.name) for number, file in enumerate(reader.files)]
        earlier = _repeated_rows(parts, reader, engine)
        parts = [part._replace(earlier=earlier.get(part.file)) for part in parts]
        progress = Progress("scoring", "files", len(parts))
        try:
            for _ in engine(_score_part, parts):
                progress.advance(1)
        except BaseException:
            progress.close(summary=False)
            raise
        progress.close()
        rows = ScoredRows.empty(source, slices)
        for part in parts:
            rows.extend(pickle.loads(job.rows(part.number).read_bytes()))
            job.rows(part.number).unlink()
        return rows


@contextmanager
def _temporary_errors() -> Iterator[None]:
    """Convert errors of the filesystem in the folder for temporary files."""
    try:
        yield
    except OSError as error:
        folder = tempfile.gettempdir()
        reason = f"{folder}: cannot be written or read ({os_error_text(error)})"
        raise OutputError(f"{reason}; free space, or set TMPDIR to a folder that all workers see") from None


def _repeated_rows(parts: Sequence[Part], reader: LogReader, engine: Engine) -> dict[str, Hashes]:
    """Return, by name of the file, the hashes of its rows that also occur in an earlier file of its folder."""
    folders = [[file.name for file in files] for files in reader.partitions() if len(files) > 1]
    names = {name for folder in folders for name in folder}
    compared = [part for part in parts if part.file in names]
    hashes = dict(engine(_hash_part, compared)) if compared else {}
    repeated = {}
    for folder in folders:
        seen = DuplicateFilter()
        for name in folder:
            own = hashes.pop(name)
            repeated[name] = own[seen.contains(own)]
            seen.add(own)
    return repeated


def _score_part(part: Part) -> None:
    """Score a part in a worker of an engine, with one thread, and write its rows for the process of the engine."""
    torch.set_num_threads(1)
    job = part.job
    source, reader = _opened(job.folder, job.model, job.log_range)
    reader = reader.with_joined(job.joined).with_file(part.file)
    with _temporary_errors():
        baselines = pickle.loads(job.baselines.read_bytes()) if job.has_baselines else None
    rows = score_rows(source, reader, job.log_range, job.slices, baselines, part.earlier)
    with _temporary_errors():
        draft = job.folder / uuid4().hex  # an earlier attempt may still be running
        draft.write_bytes(pickle.dumps(rows))
        draft.replace(job.rows(part.number))


def _hash_part(part: Part) -> tuple[str, Hashes]:
    """Return the name of the file and the hashes of the rows of a part, in a worker of an engine."""
    job, log_range = part.job, part.job.log_range
    _, reader = _opened(job.folder, job.model, log_range)
    return part.file, reader.with_file(part.file).row_hashes(log_range.time_range, users=log_range.users)


@lru_cache(maxsize=1)
def _opened(folder: Path, model: Path, log_range: LogRange) -> tuple[Scorer, LogReader]:  # noqa: ARG001 — names the job
    """Return the model and the log of a job, which a worker opens once for all of its parts."""
    (source,) = resolve_scorers(model)
    return source, LogReader(log_range.path, source.schema, dict(source.tables), until=log_range.time_range.until)
