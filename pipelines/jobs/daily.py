"""``ranker daily``: trains on a new day from a warm start, compares with the served model, and publishes.

Each day has a folder with its run, its ``bundle/`` and its result ``daily.json``. Repeating the command continues an
interrupted job.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from pipelines.config.config import Config, LogsConfig
from pipelines.config.uri import redact_uri
from pipelines.console import print_status
from pipelines.data.reader import LogReader, load_tables
from pipelines.data.splits import TimeRange, split_range
from pipelines.engines import Engine
from pipelines.evaluation.compare import compare
from pipelines.evaluation.format import describe_intervals, format_comparison
from pipelines.evaluation.promotion import describe_lack_of_power, find_regressions
from pipelines.evaluation.sources import resolve_scorers
from pipelines.jobs.counter_loss import Coverage, require_coverage
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.publish import publish
from pipelines.jobs.refresh_counters import refresh_counters
from pipelines.jobs.train import train
from pipelines.report.page import write_report
from pipelines.runs.run import RunFolder
from pipelines.training.warm_start import WarmStart
from ranking.artifacts import repository
from ranking.artifacts.atomic_files import write_json
from ranking.artifacts.bundle import COUNTERS
from ranking.artifacts.checksums import CHECKSUM_FILE
from ranking.errors import ConfigError, LogError, QualityGateError, UsageError
from ranking.frozen.embedding_rows import RowType

BUNDLE, REFRESHED = "bundle", "refreshed_bundle"
RECORD = "daily.json"


def daily(
    config: Config,
    runs: Path,
    repo: Path,
    day: date,
    *,
    margin: float,
    publish_without_power: bool = False,
    allow_poorer_counters: bool = False,
    fresh: bool = False,
    embeddings: RowType = "float32",
    command: Sequence[str] = (),
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Train on the days since the last training, compare with the served model on the new day, and publish.

    Args:
        config: configuration of the model; its splits define when a day starts and the length of validation.
        runs: folder for the runs of all days.
        repo: the repository.
        day: the test split of both models; later rows are not read.
        margin: tolerated loss of a metric against the served model, as a share of its value.
        publish_without_power: publish a model even if the day has too few labels to tell whether it is worse.
        allow_poorer_counters: publish counters that lack much of those of the served version.
        fresh: train from scratch instead of from the run of the served model.
        embeddings: type of the rows of embedding tables in the bundle.
        command: arguments of the command line, stored in the run.
        engine: reads the files of the log before the training, and scores those of the day for the comparison.

    Returns:
        ``daily.json``: ``day``, ``model``, ``from`` (day of the run that training started from, or None), ``against``
        (the version that it was compared with, or None), ``comparison`` (the result of ``compare``, or None), ``worse``
        (the regressions beyond the margin), ``no_power`` (why the comparison cannot tell, or None), ``version`` and
        ``refreshed`` (the version with the served model and the counters of the day, or None).

    Raises:
        QualityGateError: the model is worse than the served one by more than the margin, or the day has too few labels
            to tell. It is not published, but the served model is published again with the counters of the day, if it
            has counters or histories, and these do not end later. Or the counters lack much of those of the served
            version: nothing is published.
        LogError: the log has no row of the day, no rows before it to train and validate on, or no label of the day.
        ConfigError: the configuration has teachers.
        UsageError: the day is not later than that of the served run, or no day is left to train on.
        RankerError: a step failed.
    """
    if config.training.teachers:
        raise ConfigError("training.teachers: runs of other days cannot teach a daily training: remove the setting")
    folder, name = runs / day.isoformat(), config.name
    version = _version_of(folder / BUNDLE, repo, name)
    if version is not None:
        print_status(f"{day} is already published")
        return _record(folder, json.loads((folder / RECORD).read_text()) | {"version": version})
    release = repository.find_release(repo, name)
    served = None if release is None else release.version
    earlier = None if served is None or fresh else _run_of(repository.bundle_folder(repo, name, served), runs)
    config = config.model_copy(update={"logs": _splits(config.logs, day, earlier)})
    if not RunFolder(folder).finished:
        _require_rows(config, day)
    _print_start(day, name, served, earlier, runs, fresh=fresh)
    run = train(
        config,
        folder,
        resume=True,
        warm_start=None if earlier is None else WarmStart(earlier, False),
        command=command,
        engine=engine,
    )
    comparison, regressions, no_power = None, [], None
    if served is not None:
        _compare_counters(repository.bundle_folder(repo, name, served), run, day, allow_poorer_counters)
        comparison = _compare(repository.bundle_folder(repo, name, served), run, config.evaluation.users, engine)
        regressions = find_regressions(comparison, margin)
        no_power = describe_lack_of_power(comparison, config.objective)
        print_status(format_comparison({**comparison, "a": f"version {served} of {name}", "b": str(folder)}))
    record = {
        "day": day.isoformat(),
        "model": name,
        "from": None if earlier is None else earlier.path.name,
        "against": served,
        "comparison": comparison,
        "worse": [regression.to_json() for regression in regressions],
        "no_power": no_power,
        "version": None,
        "refreshed": None,
    }
    _record(folder, record)
    if regressions or (no_power is not None and not publish_without_power):
        assert served is not None
        assert comparison is not None
        refreshed = _refresh_counters(repository.bundle_folder(repo, name, served), run, repo, allow_poorer_counters)
        _record(folder, record | {"refreshed": refreshed})
        continued = "" if refreshed is None else f" Version {refreshed} is version {served} with the counters of {day}."
        if regressions:
            reason = f"it is worse than version {served} of {name} by more than {100 * margin:g}%: "
            reason += f"{'; '.join(map(str, regressions))} ({describe_intervals(comparison['intervals'])})"
            fix = "fix the log or the settings, or increase --margin"
        else:
            reason = f"no power to compare it with version {served} of {name}, which is kept: {no_power}"
            fix = "a later day trains on it, too; or use --publish-without-power"
        raise QualityGateError(f"{day} is not published: {reason}. The run is kept in {folder}; {fix}.{continued}")
    if not (folder / BUNDLE).exists():
        write_report(folder)  # becomes part of the bundle
        freeze_run(folder, folder / BUNDLE, embeddings)
    _, version = publish(folder / BUNDLE, repo, allow_poorer_counters=allow_poorer_counters)
    return _record(folder, record | {"version": version})


def run_days(first: date, last: date, run_day: Callable[[date], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Run the job of each day in order and yield its result; a day whose model is rejected does not stop the others.

    Args:
        first: first day.
        last: last day.
        run_day: runs the job of a day, see ``daily``.

    Raises:
        QualityGateError: the models of some days were rejected, after the last day.
        RankerError: a step failed.
    """
    rejected = []
    for number in range((last - first).days + 1):
        day = first + timedelta(days=number)
        try:
            yield run_day(day)
        except QualityGateError as error:
            if first == last:
                raise
            print_status(str(error))
            rejected.append(day.isoformat())
    if rejected:
        raise QualityGateError(f"not published, see the messages above: {', '.join(rejected)}")


def _compare_counters(served: Path, run: RunFolder, day: date, allow: bool) -> None:
    """Check that the counters of a run do not lack much of those of the served version.

    Raises:
        QualityGateError: they do.
    """
    old, new = Coverage.of_version(served), Coverage.of_state(run.counters, run.load_config().serving_schema)
    try:
        require_coverage(old, new, served, run.path, allow=allow, report=False)  # publish reports it
    except QualityGateError as error:
        raise QualityGateError(f"{day} is not published: {error}. The run is kept in {run.path}") from None


def _refresh_counters(served: Path, run: RunFolder, repo: Path, allow_poorer_counters: bool) -> int | None:
    """Publish the served bundle with the counters of a run, unless an interrupted job already did."""
    out = run.path / REFRESHED
    published = _version_of(out, repo, served.parent.name)
    if published is not None:
        return published
    return refresh_counters(served, run, out, repo, allow_poorer_counters=allow_poorer_counters)


def _version_of(bundle: Path, repo: Path, name: str) -> int | None:
    """Return the version as which a bundle was published; None if it was not."""
    return next(
        (v for v in repository.list_versions(repo, name) if _is_copy(bundle, repository.bundle_folder(repo, name, v))),
        None,
    )


def _run_of(published: Path, runs: Path) -> RunFolder | None:
    """Return the run that a published bundle was frozen from; None if it is not in ``runs``.

    Its counters may be those of a later day.
    """
    model = _checksums(published, without=COUNTERS)
    bundles = (bundle for bundle in sorted(runs.glob(f"*/{BUNDLE}")) if _checksums(bundle, without=COUNTERS) == model)
    return next((RunFolder.open(bundle.parent) for bundle in bundles), None)


def _is_copy(bundle: Path, other: Path) -> bool:
    """Return whether two bundles have the same content."""
    checksums = _checksums(bundle)
    return bool(checksums) and checksums == _checksums(other)


def _checksums(bundle: Path, without: str | None = None) -> list[str]:
    """Return the lines of SHA256SUMS, except for files in the folder ``without``; empty if there is no such file."""
    file = bundle / CHECKSUM_FILE
    lines = file.read_text().splitlines() if file.exists() else []
    return [line for line in lines if without is None or f"  {without}/" not in line]


def _splits(logs: LogsConfig, day: date, earlier: RunFolder | None) -> LogsConfig:
    """Return the splits for a day: the day tests, the time before it validates, and rows not trained on yet train.

    Rows after the day are not read, so that the job of a day in the past does what it would have done then.
    """
    test_from, test_until = (datetime.combine(d, logs.test_from.timetz()) for d in (day, day + timedelta(days=1)))
    validation_from = test_from - (logs.test_from - logs.validation_from)
    train_from = logs.train_from if earlier is None else earlier.load_config().logs.validation_from
    if train_from is not None and train_from >= validation_from:
        bound = (
            "[logs] train_from is"
            if earlier is None
            else f"{earlier.path}, the run of the served version, trained until"
        )
        raise UsageError(
            f"{day}: {bound} {train_from.isoformat()}, so no day is left to train on; specify a later --day"
        )
    bounds = {"train_from": train_from, "validation_from": validation_from}
    return logs.model_copy(update=bounds | {"test_from": test_from, "test_until": test_until})


def _require_rows(config: Config, day: date) -> None:
    """Check that each split of a day has a row.

    Raises:
        LogError: one has none.
    """
    logs, schema = config.logs, config.training_schema.logged
    reader = LogReader(logs.path, schema, load_tables(logs, schema))

    def has_rows(split: str) -> bool:
        return any(chunk.rows.num_rows for chunk in reader.scan(split_range(logs, split)))

    if not has_rows("test"):
        raise LogError(f"{redact_uri(logs.path)}: has no row of {day} to evaluate the model on")
    if not has_rows("validation"):
        times = [
            pc.max(chunk.rows[schema.columns.time]).as_py()
            for chunk in reader.scan(TimeRange(until=logs.validation_from))
            if chunk.rows.num_rows
        ]
        last = f"the last row before is of {max(times)}" if times else "nor any earlier row"
        raise LogError(
            f"{redact_uri(logs.path)}: has rows of {day}, but none from {logs.validation_from} to {logs.test_from} to "
            f"validate its model on ({last}): specify a --day that follows days with rows, or run 'ranker train' with "
            "logs.validation_from and logs.test_from of your own"
        )
    if not has_rows("train"):
        since = "" if logs.train_from is None else f"from {logs.train_from} "
        raise LogError(
            f"{redact_uri(logs.path)}: has no row {since}to {logs.validation_from} to train the model of {day} on: "
            "specify a later --day"
        )


def _print_start(
    day: date, name: str, served: int | None, earlier: RunFolder | None, runs: Path, *, fresh: bool
) -> None:
    if earlier is not None:
        print_status(f"{day}: continues from {earlier.path}, version {served} of {name}")
    elif served is None:
        print_status(f"{day}: no version of {name} is served yet: trains from scratch, without a comparison")
    elif fresh:
        print_status(f"{day}: trains from scratch because of --fresh, without the run of version {served}")
    else:
        print_status(
            f"{day}: trains from scratch, because no {runs}/*/{BUNDLE} is that of version {served} of {name}; to "
            f"continue from its run in {runs}, stop and run 'ranker freeze RUN --out RUN/{BUNDLE}'"
        )


def _compare(served: Path, run: RunFolder, users: float, engine: Engine | None) -> dict[str, Any]:
    """Compare a run with the served bundle on the test split of the run, for a share of the users."""
    comparison = compare(resolve_scorers(served), resolve_scorers(run.path), users=users, engine=engine)
    if not any(part["measures"] for part in comparison["tasks"].values()):
        raise LogError(f"{run.path}: no row of its test split has a label, so the models cannot be compared")
    return comparison


def _record(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    write_json(record, folder / RECORD)
    return record
