"""Profile of a log: one pass that counts rows, labels, nulls and days, and indexes the usable rows."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config.config import Config, LogsConfig
from pipelines.config.uri import redact_uri
from pipelines.console import Progress
from pipelines.data.index import IndexedChunk, LogIndex
from pipelines.data.reader import LogReader, as_log_error
from pipelines.data.splits import SPLITS, TimeRange, split_range
from ranking.artifacts.atomic_files import check_folder, os_error_text
from ranking.encoding.encoder import encode_labels
from ranking.errors import LogError, OutputError
from ranking.schema import Schema

MAX_GAPS = 10
"""Maximum number of gaps between days that a message lists."""


@dataclass
class LabelProfile:
    """Statistics of a label in one split, after the task's transform.

    Attributes:
        rows: number of rows with a label.
        total: sum of the labels.
        low: smallest label.
        high: largest label.
    """

    rows: int = 0
    total: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")

    @property
    def mean(self) -> float | None:
        """Mean label (the rate of a binary label); None without rows."""
        return self.total / self.rows if self.rows else None


@dataclass
class LogProfile:
    """Statistics of a log after cleaning.

    Attributes:
        rows: number of usable rows per split.
        duplicates: number of exact duplicates that were dropped.
        bad: number of bad rows per reason.
        nulls: number of null values per feature, after the look-up in the side tables.
        labels: statistics per split and task.
        days: number of usable rows per day.
        index: positions of the usable rows.
    """

    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    duplicates: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    nulls: Counter[str] = field(default_factory=Counter)
    labels: dict[str, dict[str, LabelProfile]] = field(default_factory=dict)
    days: Counter[date] = field(default_factory=Counter)
    index: LogIndex = field(default_factory=lambda: LogIndex([]))

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``survey.json``."""
        total = sum(self.rows.values())
        return {
            "rows": dict(self.rows),
            "duplicates": self.duplicates,
            "bad": dict(self.bad),
            "null_rate": {name: count / max(total, 1) for name, count in self.nulls.items()},
            "labels": {
                split: {task: {"rows": label.rows, "mean": label.mean} for task, label in labels.items()}
                for split, labels in self.labels.items()
            },
        }

    def to_text(self) -> str:
        """Return the profile as text for the terminal."""
        lines = ["rows: " + ", ".join(f"{split} {count:,}" for split, count in self.rows.items())]
        lines.append(f"exact duplicates dropped: {self.duplicates:,}")
        lines.append(f"bad rows dropped: {self.bad.total():,}")
        lines += [f"  {count:,} × {reason}" for reason, count in self.bad.most_common()]
        lines.append("mean label by split (the rate of a binary label; after the transform, if any):")
        for task in self.labels[SPLITS[0]]:
            cells = []
            for split in SPLITS:
                label = self.labels[split][task]
                cells.append(f"{split} {'–' if label.mean is None else format(label.mean, '.5f')} of {label.rows:,}")
            lines.append(f"  {task:<16} " + "   ".join(cells))
        total = max(sum(self.rows.values()), 1)
        lines.append("features with nulls after the look-up:")
        lines += [f"  {name:<24} {count / total:.2%}" for name, count in self.nulls.most_common() if count] or [
            "  none"
        ]
        return "\n".join(lines)


def profile_log(
    reader: LogReader,
    logs: LogsConfig,
    schema: Schema,
    quarantine: Path | None = None,
    on_train: Callable[[pa.Table], None] | None = None,
) -> LogProfile:
    """Read the log once from ``logs.train_from`` on and profile it.

    Args:
        reader: the log.
        logs: time bounds of the splits.
        schema: features and tasks.
        quarantine: file for bad rows with one JSON object per line: file, file_row, reason, row. None: not written.
        on_train: called with each table of usable rows of the training split.

    Raises:
        LogError: the log cannot be read, or it has no usable row.
        OutputError: the quarantine file cannot be written.
    """
    profile = LogProfile(labels={split: {task.name: LabelProfile() for task in schema.tasks} for split in SPLITS})
    progress = Progress("reading the log", unit="rows")
    with open_quarantine(quarantine) as stream:
        for chunk in reader.scan(TimeRange(since=logs.train_from)):
            progress.advance(chunk.rows.num_rows)
            profile.duplicates += chunk.duplicates
            profile.bad.update(chunk.bad["reason"].to_pylist())
            write_bad_rows(chunk.bad, stream)
            profile.days += count_days(chunk.rows[schema.columns.time])
            rows_by_split = {}
            for split in SPLITS:
                rows = split_range(logs, split).select(chunk.rows, schema.columns.time)
                rows_by_split[split] = rows.num_rows
                if rows.num_rows:
                    _count(profile, split, rows, schema)
                    if split == "train" and on_train is not None:
                        with as_log_error(chunk.file):
                            on_train(rows)
            profile.index.entries.append(IndexedChunk(chunk.chunk, rows_by_split, chunk.excluded))
    progress.close()
    if not sum(profile.rows.values()):
        reason = f"all rows are bad: {dict(profile.bad)}" if profile.bad else "the log is empty"
        raise LogError(f"{redact_uri(logs.path)}: no usable row, {reason}")
    return profile


def require_learnable(profile: LogProfile, config: Config) -> None:
    """Check that every task can be trained and validated on a log.

    Raises:
        LogError: the training or validation split is empty, days are missing, or a label is absent or constant in the
            training split.
    """
    logs = config.logs
    path = redact_uri(logs.path)
    if profile.rows["train"] < 2:
        raise LogError(f"{path}: no row before logs.validation_from = {logs.validation_from}: nothing to train on")
    if not profile.rows["validation"]:
        raise LogError(
            f"{path}: no row from {logs.validation_from} to {logs.test_from}: nothing to validate on; "
            "move logs.validation_from or logs.test_from"
        )
    gaps = missing_days(profile.days)
    if gaps and not logs.allow_missing_days:
        raise LogError(
            f"{path}: no usable row on {format_gaps(gaps)}, between {min(profile.days)} and {max(profile.days)}; "
            "restore these days, fix timestamps that are far off, or set logs.allow_missing_days = true"
        )
    for task in config.tasks:
        label = profile.labels["train"][task.name]
        if not label.rows:
            absent = "null" if task.mask is None else "null or masked"
            raise LogError(
                f"{path}: label '{task.label}' of task '{task.name}' is {absent} in every training row; drop the task"
            )
        if label.low == label.high:
            raise LogError(
                f"{path}: label '{task.label}' of task '{task.name}' is {label.low:g} in every training row: "
                "a constant cannot be learned; drop the task or fix the label"
            )


def _count(profile: LogProfile, split: str, rows: pa.Table, schema: Schema) -> None:
    profile.rows[split] += rows.num_rows
    for feature in schema.inputs:
        profile.nulls[feature.name] += rows[feature.column].null_count
    labels = encode_labels(rows, schema.tasks)
    for i, task in enumerate(schema.tasks):
        values = labels[:, i][~np.isnan(labels[:, i])].astype(np.float64)
        if len(values):
            label = profile.labels[split][task.name]
            label.rows += len(values)
            label.total += float(values.sum())
            label.low, label.high = min(label.low, float(values.min())), max(label.high, float(values.max()))


def count_days(times: pa.ChunkedArray) -> Counter[date]:
    """Return the number of rows per day, in the time zone of the column."""
    if getattr(times.type, "tz", None):
        times = pc.local_timestamp(times)
    counts = pc.value_counts(times.cast(pa.date32(), safe=False))
    return Counter(dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)))


def missing_days(days: Iterable[date]) -> list[tuple[date, date]]:
    """Return the first and last day of each gap between the given days."""
    day = timedelta(days=1)
    return [(before + day, after - day) for before, after in pairwise(sorted(days)) if after - before > day]


def format_gaps(gaps: list[tuple[date, date]]) -> str:
    """Return gaps as text for a message."""
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in gaps[:MAX_GAPS]]
    omitted = len(gaps) - len(texts)
    return ", ".join(texts) + (f" and {omitted} more gaps" if omitted else "")


@contextmanager
def open_quarantine(path: Path | None) -> Iterator[IO[str]]:
    """Open a quarantine file for ``write_bad_rows``; None discards the rows.

    Raises:
        OutputError: the file cannot be written.
    """
    if path is not None:
        check_folder(path.parent)
    try:
        with open(path or os.devnull, "w") as stream:  # noqa: PTH123 — os.devnull is a plain name
            yield stream
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({os_error_text(error)})") from None


def write_bad_rows(bad: pa.Table, stream: IO[str]) -> None:
    """Append ``ScannedChunk.bad`` to a quarantine file, one JSON object per line."""
    for record in bad.to_pylist():
        row = record.pop("row")
        stream.write(json.dumps(record, ensure_ascii=False)[:-1] + f', "row": {row}}}\n')
