"""Quality of ``ranker daily``: replays the last days of a log, with and without counters.

Each day of the log is added to a copy, then ``ranker daily`` runs on it, as a schedule would. A day is scored with the
version that the earlier jobs left in the repository ("daily"), and with the weights of the first version ("once").
Counters and histories are always those known at the time of the impression. Jobs that finished are not repeated.

    python -m benchmarks.daily kr/ranker.toml --work WORK --days 4
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset as ds

from benchmarks.counters.metrics import Metrics, mean, table, without_counters
from pipelines.config.config import Config, load_config
from pipelines.counters.columns import definition, write_joined_columns
from pipelines.data.reader import LogReader
from pipelines.data.splits import TimeRange
from pipelines.evaluation.differences import bootstrap_metrics
from pipelines.evaluation.predict import predict
from pipelines.evaluation.predictions import Predictions
from pipelines.evaluation.sources import LogRange, bundle_scorer
from pipelines.evaluation.spilled_columns import SpilledColumns
from pipelines.jobs.daily import RECORD, daily
from ranking.artifacts import bundle, repository
from ranking.errors import QualityGateError
from ranking.frozen.calibration import Calibration
from ranking.frozen.ranker import FrozenRanker
from ranking.metrics import UnitDraws

MARGIN = 0.01
"""Margin of the quality gate, the default of ``ranker daily``."""
WITHOUT, WITH = "no counters", "counters"
ONCE, DAILY = "once", "daily"


def served_days(config: Config, count: int) -> list[date]:
    """Return the last days of the log."""
    times = ds.dataset(str(config.logs.path), format="parquet").to_table([config.columns.time])[config.columns.time]
    last = pc.max(times).as_py().date()
    return [last - timedelta(days=count - 1 - i) for i in range(count)]


def replay(config: Config, folder: Path, days: Sequence[date], seed: int) -> dict[date, int]:
    """Run a daily job for the day before the first and for every day but the last.

    Returns:
        The version that serves each day.
    """
    training = config.training.model_copy(update={"seed": seed})
    source, log = Path(str(config.logs.path)), folder / "log"
    config = config.model_copy(update={"training": training, "logs": config.logs.model_copy(update={"path": str(log)})})
    versions, served = {}, 0
    for day in (days[0] - timedelta(days=1), *days[:-1]):
        _add_files(source, log, day)
        record = folder / "runs" / day.isoformat() / RECORD
        if not record.exists():
            try:
                daily(config, folder / "runs", folder / "repository", day, margin=MARGIN)
            except QualityGateError as error:
                print(f"{folder.name}: {error}", flush=True)
        result = json.loads(record.read_text())
        served = result["version"] or result["refreshed"] or served
        versions[day + timedelta(days=1)] = served
    return versions


def _add_files(source: Path, log: Path, day: date) -> None:
    """Link the files of the days up to ``day``, which are in folders such as ``date=2022-05-01``."""
    for file in sorted(source.glob("date=*/*.parquet")):
        copy = log / file.relative_to(source)
        if file.parent.name <= f"date={day.isoformat()}" and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, copy)


class ColumnCache:
    """Counters and histories of the whole log, computed once per definition.

    Args:
        folder: folder for the columns.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._columns: dict[str, Path] = {}

    def columns(self, config: Config, ranker: FrozenRanker) -> Path | None:
        """Return the columns for a version; None if it has neither counters nor histories.

        Versions differ in their definition if the maximum of a label is estimated from the log.
        """
        schema = ranker.schema
        if not schema.counter_features:
            return None
        reader = LogReader(config.logs.path, schema, dict(ranker.tables))
        key = definition(reader, schema)
        if key not in self._columns:
            folder = self._folder / str(len(self._columns))
            folder.mkdir()
            write_joined_columns(reader, schema, folder)
            self._columns[key] = folder
        return self._columns[key]


def score(config: Config, repo: Path, versions: Mapping[date, int], cache: ColumnCache) -> list[Predictions]:
    """Return the calibrated predictions for each day with its version.

    Args:
        config: configuration of the model.
        repo: the repository.
        versions: version for each day.
        cache: counters and histories of the log.
    """
    parts = []
    for day, version in versions.items():
        ranker = bundle.load(repository.bundle_folder(repo, config.name, version))
        start = datetime.combine(day, config.logs.test_from.timetz())
        rows = LogRange(config.logs.path, TimeRange(start, start + timedelta(days=1)), cache.columns(config, ranker))
        part = predict(bundle_scorer(ranker, f"version {version}"), rows)
        names = [task.name for task in part.tasks]
        outputs = part.calibration(np.stack([part.outputs.column(i) for i in range(len(names))], 1), names)
        calibrated = SpilledColumns.of(outputs.astype(np.float32))
        parts.append(replace(part, outputs=calibrated, calibration=Calibration()))
    return parts


def concatenated(parts: Sequence[Predictions]) -> Predictions:
    """Return the predictions of all days as one, without slices, requests and positions."""
    labels, outputs = (SpilledColumns(np.float32, len(parts[0].tasks)) for _ in range(2))
    for part in parts:
        labels.extend(part.labels)
        outputs.extend(part.outputs)
    return replace(
        parts[0],
        labels=labels,
        outputs=outputs,
        users=np.concatenate([part.users for part in parts]),
        days=np.concatenate([part.days for part in parts]),
        requests=None,
        slices=(),
        positions=np.zeros(0, np.int64),
    )


def measured(predictions: Predictions, draws: UnitDraws, config: Config) -> Metrics:
    """Return the metrics of each task under the same draws; AUC is the mean of the days' AUCs."""
    results = {}
    days = np.unique(predictions.days)
    for i, task in enumerate(predictions.tasks):
        has_label = predictions.has_label(i)
        rows = predictions.task_rows(i, draws, has_label)
        metrics = bootstrap_metrics(task, rows, draws, config.evaluation)
        if task.kind == "binary":
            by_day = []
            for day in days:
                part = predictions.task_rows(i, draws, has_label & (predictions.days == day))
                by_day.append(bootstrap_metrics(task, part, draws, config.evaluation)["auc"])
            metrics["auc"] = np.mean(by_day, axis=0)
            del metrics["gauc"]  # it would compare scores of different versions
        results[task.name] = metrics
    return results


def main() -> None:
    """Replay, score and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="ranker.toml with [[counters]] and a log in folders date=YYYY-MM-DD")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs and repositories")
    parser.add_argument("--days", type=int, default=4, help="number of days that are scored")
    parser.add_argument("--seeds", type=int, default=2)
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    days = served_days(config, arguments.days)
    predictions: dict[str, list[Predictions]] = {}
    configs = {WITHOUT: without_counters(config), WITH: config}
    with TemporaryDirectory() as temporary:
        cache = ColumnCache(Path(temporary))
        for label, model_config in configs.items():
            for seed in range(arguments.seeds):
                folder = arguments.work / f"{label.replace(' ', '-')}-{seed}"
                versions = replay(model_config, folder, days, seed)
                once = dict.fromkeys(days, versions[days[0]])
                for kind, by_day in ((ONCE, once), (DAILY, versions)):
                    parts = score(model_config, folder / "repository", by_day, cache)
                    predictions.setdefault(f"{label}, {kind}", []).append(concatenated(parts))
    first = next(iter(predictions.values()))[0]
    draws = UnitDraws(first.units, config.evaluation.bootstrap)
    results = {model: mean([measured(part, draws, config) for part in parts]) for model, parts in predictions.items()}
    neither, *others = results
    differences = [*((neither, other) for other in others), (f"{WITH}, {ONCE}", f"{WITH}, {DAILY}")]
    print(f"{len(first):,} rows of {days[0]} to {days[-1]}, {arguments.seeds} seeds\n")
    print(table(results, config, first.units.count, differences))


if __name__ == "__main__":
    main()
