"""``ranker score``: scores a log or a table of candidates in batches, in this process or by an engine."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pyarrow as pa
import torch

from pipelines.config.uri import Uri
from pipelines.console import Progress
from pipelines.engines import Engine
from pipelines.jobs.log_scorer import LogScorer, ScoringCounts
from ranking.artifacts import bundle
from ranking.artifacts.atomic_files import atomic_directory, check_creatable, check_writable, write_errors
from ranking.frozen.ranker import FrozenRanker


class Part(NamedTuple):
    """A file of a log, which a worker of an engine scores.

    Attributes:
        bundle: folder of the bundle.
        logs: the log.
        tasks: tasks to score.
        file: name of the file.
        schema: columns of the scores.
        out: Parquet file for the scores.
        quarantine: JSON Lines file for the bad rows.
    """

    bundle: Path
    logs: Uri
    tasks: tuple[str, ...]
    file: str
    schema: pa.Schema
    out: Path
    quarantine: Path


def score_log(
    ranker: FrozenRanker,
    logs: Uri,
    out: Path,
    tasks: Sequence[str] | None = None,
    *,
    allow_missing: bool = False,
) -> dict[str, int]:
    """Score every row of a log; duplicates are kept, bad rows are written to ``OUT.quarantine.jsonl``.

    Args:
        ranker: the ranker.
        logs: Parquet file or folder; labels are not needed.
        out: Parquet file for the ids of each row, its time (if any), a column per task and ``score``, by which a
            service sorts.
        tasks: tasks to score; default: all.
        allow_missing: score although most feature columns have no value in any row.

    Returns:
        Number of ``scored`` and of ``bad`` rows, and of scored rows with ``unseen_users`` and ``unseen_items``, if the
        ranker knows the ids of users or items.

    Raises:
        LogError: the log cannot be read, is empty, or lacks the values of most feature columns.
        OutputError: ``out`` cannot be written.
        InvalidInputError: a task is unknown or named twice.
    """
    ranker.tasks(tasks)
    check_writable(out)
    scorer, draft, quarantine = LogScorer(ranker, logs, tasks), out.with_name(f".{out.name}.draft"), _quarantine(out)
    progress = Progress("scoring", unit="rows")
    try:
        scored = scorer.score(draft, quarantine, progress=progress)
        progress.close()
        scorer.check(scored, quarantine, allow_missing=allow_missing)
        with write_errors(out):
            draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)
    return dict(scored.counts)


def score_parts(
    folder: Path,
    logs: Uri,
    out: Path,
    engine: Engine,
    tasks: Sequence[str] | None = None,
    *,
    allow_missing: bool = False,
) -> dict[str, int]:
    """Score every row of a log as ``score_log`` does, but let an engine score the files, each by one of its workers.

    Workers read the bundle and the log, and write to a folder beside ``out``, under the same paths as this process. A
    file that is scored again, because its worker was killed, is not counted twice.

    Args:
        folder: the bundle.
        logs: Parquet file or folder; labels are not needed.
        out: new folder for a Parquet file per file of the log, in the same order.
        engine: the engine.
        tasks: tasks to score; default: all.
        allow_missing: score although most feature columns have no value in any row.

    Returns:
        As ``score_log``.

    Raises:
        As ``score_log``, and BundleError: the bundle cannot be loaded.
    """
    ranker = bundle.load(folder)
    ranker.tasks(tasks)
    check_creatable(out)
    scorer, quarantine = LogScorer(ranker, logs, tasks), _quarantine(out)
    scorer.reader.check_files()
    names, schema = tuple(task.name for task in scorer.tasks), scorer.schema()
    scored, progress = ScoringCounts(set(scorer.features)), Progress("scoring", unit="rows")
    with atomic_directory(out) as draft:
        parts = [
            Part(folder.absolute(), logs, names, file.name, schema, *_files_of_part(draft, number))
            for number, file in enumerate(scorer.reader.files)
        ]
        for result in engine(score_part, parts):
            scored.add(result)
            progress.advance(result.counts["scored"])
        progress.close()
        _collect_bad_rows([part.quarantine for part in parts], quarantine)
        for abandoned in draft.glob(".*"):
            abandoned.unlink()
        scorer.check(scored, quarantine, allow_missing=allow_missing)
    return dict(scored.counts)


def score_part(part: Part) -> ScoringCounts:
    """Score a part of a log in a worker of an engine, with one thread; see ``LogScorer.score``.

    Its files replace those of an earlier attempt, which may still be running if an engine has lost sight of it.
    """
    torch.set_num_threads(1)
    files = part.out, part.quarantine
    scores, bad_rows = (file.with_name(f".{uuid4().hex}") for file in files)
    result = _worker_scorer(part.bundle, part.logs, part.tasks).score(scores, bad_rows, part.file, part.schema)
    for draft, file in zip((scores, bad_rows), files, strict=True):
        if draft.exists():
            draft.replace(file)
    return result


@lru_cache(maxsize=1)
def _worker_scorer(folder: Path, logs: Uri, tasks: tuple[str, ...]) -> LogScorer:
    """Return the scorer of this worker, which loads the bundle once for all of its parts."""
    return LogScorer(bundle.load(folder), logs, tasks)


def _files_of_part(folder: Path, number: int) -> tuple[Path, Path]:
    name = f"part-{number:05d}"
    return folder / f"{name}.parquet", folder / f".{name}.quarantine.jsonl"


def _quarantine(out: Path) -> Path:
    return out.with_name(f"{out.name}.quarantine.jsonl")


def _collect_bad_rows(parts: Sequence[Path], quarantine: Path) -> None:
    """Move the bad rows of all parts to one file; without any, the file of an earlier run is removed."""
    quarantine.unlink(missing_ok=True)
    for part in parts:
        if part.exists():
            with part.open("rb") as source, quarantine.open("ab") as target:
                shutil.copyfileobj(source, target)
            part.unlink()
