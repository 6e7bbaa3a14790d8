"""Score the files of a log with the workers of an engine."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch

from pipelines.console import Progress
from pipelines.data.dedup import DuplicateFilter, Hashes
from pipelines.data.joined import JoinedColumns
from pipelines.data.reader import LogReader
from pipelines.engines import Engine
from pipelines.evaluation.scored_rows import PredictBaselines, ScoredRows, score_rows
from pipelines.evaluation.sources import LogRange, Scorer, resolve_scorers
from ranking.temporary_folders import temporary_folder


class Job(NamedTuple):
    """What all parts of a log have in common.

    Attributes:
        model: folder of the run or bundle.
        log_range: the rows of the log to score.
        slices: names of slices.
        joined: computed columns of counters and histories, if the model has any.
        baselines: file with the pickled function of the baselines; None if there are none.
    """

    model: Path
    log_range: LogRange
    slices: tuple[str, ...]
    joined: JoinedColumns | None
    baselines: Path | None = None


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
    job: Job, reader: LogReader, baselines: PredictBaselines | None, engine: Engine
) -> Iterator[ScoredRows]:
    """Score the files of a log with an engine; yields their rows in the order of the log.

    Exact duplicates are dropped as in one process: the first pass finds rows of a file that occur in an earlier one.

    Args:
        job: the job, without baselines.
        reader: the log.
        baselines: see ``score_rows``.
        engine: the engine.

    Raises:
        LogError: the log cannot be used.
    """
    files = [file.name for file in reader.files]
    with temporary_folder("evaluation") as folder:
        if baselines is not None:
            job = job._replace(baselines=folder / "baselines")
            (folder / "baselines").write_bytes(pickle.dumps(baselines))
        parts = [Part(job, number, name) for number, name in enumerate(files)]
        earlier = _repeated_rows(parts, reader, engine)
        parts = [part._replace(earlier=earlier.get(part.number)) for part in parts]
        progress, results = Progress("scoring", unit="rows"), dict[int, ScoredRows]()
        for number, rows in engine(_score_part, parts):
            results[number] = rows
            progress.advance(sum(map(len, rows.users)))
        progress.close()
    for part in parts:
        yield results.pop(part.number)


def _repeated_rows(parts: Sequence[Part], reader: LogReader, engine: Engine) -> dict[int, Hashes]:
    """Return, by number of the part, the hashes of its rows that also occur in an earlier file of its folder."""
    folders = [
        [number for number, _ in files]
        for _, files in groupby(enumerate(reader.files), key=lambda entry: (entry[1].source, entry[1].folder))
    ]
    compared = [parts[number] for numbers in folders if len(numbers) > 1 for number in numbers]
    hashes = dict(engine(_hash_part, compared)) if compared else {}
    repeated = {}
    for numbers in folders:
        seen = DuplicateFilter()
        for number in numbers:
            if number in hashes:
                own = hashes.pop(number)
                repeated[number] = own[seen.contains(own)]
                seen.add(own)
    return repeated


def _score_part(part: Part) -> tuple[int, ScoredRows]:
    """Score a part in a worker of an engine, with one thread."""
    torch.set_num_threads(1)
    job = part.job
    source, reader = _opened(job.model, job.log_range)
    reader = reader.with_joined(job.joined).with_file(part.file)
    baselines = None if job.baselines is None else pickle.loads(job.baselines.read_bytes())
    return part.number, score_rows(source, reader, job.log_range, job.slices, baselines, part.earlier)


def _hash_part(part: Part) -> tuple[int, Hashes]:
    """Return the hashes of the rows of a part, in a worker of an engine."""
    log_range = part.job.log_range
    _, reader = _opened(part.job.model, log_range)
    return part.number, reader.with_file(part.file).row_hashes(log_range.time_range, users=log_range.users)


@cache
def _opened(model: Path, log_range: LogRange) -> tuple[Scorer, LogReader]:
    """Return the model and the log of this worker, which opens them once for all of its parts."""
    (source,) = resolve_scorers(model)
    return source, LogReader(log_range.path, source.schema, dict(source.tables), until=log_range.time_range.until)
