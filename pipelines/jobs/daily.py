"""``ranker daily``: a new day's log → a warm start → the verdict → a bundle → the version that is served.

Each day has a folder among the runs: the run, its ``bundle/``, and ``daily.json``, which tells what became of it. A job
that was interrupted goes on where it was when the same command is given again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

from pipelines.config.config import Config, LogsConfig
from pipelines.config.uri import redact_uri
from pipelines.console import print_status
from pipelines.data.reader import LogReader, load_tables
from pipelines.data.splits import split_range
from pipelines.evaluation.compare import compare
from pipelines.evaluation.promotion import Regression, find_regressions
from pipelines.evaluation.sources import resolve_scorers
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.publish import publish
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training.warm_start import WarmStart
from ranking.artifacts import repository
from ranking.artifacts.atomic_files import write_json
from ranking.artifacts.checksums import CHECKSUM_FILE
from ranking.artifacts.release import CURRENT
from ranking.errors import LogError, QualityGateError, UsageError

BUNDLE = "bundle"
RECORD = "daily.json"


def daily(
    config: Config,
    runs: Path,
    repo: Path,
    day: date,
    *,
    margin: float,
    fresh: bool = False,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Trains on the days before that the served model has not seen, measures both on the day, publishes the new one.

    Args:
        config: of the model; its splits say when a day begins and how long validation is.
        runs: folder of all days.
        repo: the repository.
        day: the newest day of the log. It judges, and trains nothing.
        margin: what a measure of a task may lose against the served model, as a share of its value there.
        fresh: train from the start instead of going on from the run that is served.
        command: what was given on the command line.

    Returns:
        ``daily.json``: ``day``, ``model``, ``from`` (the day whose run it went on from, or None), ``against`` (the
        version that it was compared with, or None), ``worse`` (what is lost beyond the margin) and ``version``.

    Raises:
        QualityGateError: the model is worse than the served one by more than the margin; nothing is published.
        LogError: the log has no row of the day, or none by which models can be compared.
        UsageError: the day is not later than that of the served run, or training would begin after it.
        RankerError: a step failed; says which and why.
    """
    folder, name = runs / day.isoformat(), config.name
    version = _version_of(folder / BUNDLE, repo, name)
    if version is not None:
        print_status(f"{day}: is published already")
        return _record(folder, json.loads((folder / RECORD).read_text()) | {"version": version})
    served = repository.read_release(repo, name).version if (repo / name / CURRENT).exists() else None
    earlier = None if served is None or fresh else _run_of(repository.bundle_folder(repo, name, served), runs)
    config = config.model_copy(update={"logs": _splits(config.logs, day, earlier)})
    _require_rows(config, day)
    _tell_start(day, name, served, earlier)
    run = train(
        config, folder, resume=True, warm_start=None if earlier is None else WarmStart(earlier, False), command=command
    )
    lost = [] if served is None else _lost(repository.bundle_folder(repo, name, served), run, margin)
    record = {
        "day": day.isoformat(),
        "model": name,
        "from": None if earlier is None else earlier.path.name,
        "against": served,
        "worse": [loss.to_json() for loss in lost],
        "version": None,
    }
    _record(folder, record)
    if lost:
        raise QualityGateError(
            f"{day} is not published, it is worse than version {served} of {name} by more than {margin:.1%}: "
            f"{'; '.join(map(str, lost))}. {folder} is kept; mend the log or the settings, or allow more with --margin"
        )
    if not (folder / BUNDLE).exists():
        freeze_run(folder, folder / BUNDLE)
    _, version = publish(folder / BUNDLE, repo)
    return _record(folder, record | {"version": version})


def _version_of(bundle: Path, repo: Path, name: str) -> int | None:
    """The version that a bundle was published as."""
    return next(
        (v for v in repository.list_versions(repo, name) if _same(bundle, repository.bundle_folder(repo, name, v))),
        None,
    )


def _run_of(published: Path, runs: Path) -> RunFolder | None:
    """The run that a published bundle was frozen from."""
    return next((RunFolder.open(b.parent) for b in sorted(runs.glob(f"*/{BUNDLE}")) if _same(b, published)), None)


def _same(bundle: Path, other: Path) -> bool:
    """Whether two bundles are copies of each other."""
    sums = [folder / CHECKSUM_FILE for folder in (bundle, other)]
    return all(file.exists() for file in sums) and sums[0].read_bytes() == sums[1].read_bytes()


def _splits(logs: LogsConfig, day: date, earlier: RunFolder | None) -> LogsConfig:
    """The day tests, the time before it validates, and what the earlier run did not train on trains."""
    test_from = datetime.combine(day, logs.test_from.timetz())
    validation_from = test_from - (logs.test_from - logs.validation_from)
    train_from = logs.train_from if earlier is None else earlier.load_config().logs.validation_from
    if train_from is not None and train_from >= validation_from:
        before = "[logs] train_from" if earlier is None else f"{earlier.path}, whose run is served, trained until"
        raise UsageError(f"{day}: {before} {train_from.isoformat()}, so no day is left to train on; name a later --day")
    return logs.model_copy(
        update={"train_from": train_from, "validation_from": validation_from, "test_from": test_from}
    )


def _require_rows(config: Config, day: date) -> None:
    reader = LogReader(config.logs.path, config.training_schema, load_tables(config.logs, config.training_schema))
    if not any(cleaned.rows.num_rows for cleaned in reader.scan(split_range(config.logs, "test"))):
        raise LogError(f"{redact_uri(config.logs.path)}: has no row of {day}, by which the model would be judged")


def _tell_start(day: date, name: str, served: int | None, earlier: RunFolder | None) -> None:
    if earlier is not None:
        print_status(f"{day}: goes on from {earlier.path}, version {served} of {name}")
    elif served is None:
        print_status(
            f"{day}: nothing is served as {name} yet, so training begins from the start, and nothing is compared"
        )
    else:
        print_status(f"{day}: trains from the start, because no run of version {served} is used")


def _lost(served: Path, run: RunFolder, margin: float) -> list[Regression]:
    """What the run loses against the served bundle on the run's test split."""
    found = compare(resolve_scorers(served), resolve_scorers(run.path))
    if not any(part["measures"] for part in found["tasks"].values()):
        raise LogError(f"{run.path}: no label of its test split is known, so that nothing can be compared")
    return find_regressions(found, margin)


def _record(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    write_json(record, folder / RECORD)
    return record
