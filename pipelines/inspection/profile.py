"""Profile of a log: one pass that counts rows, labels, nulls and days, and indexes the usable rows."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config.config import LogsConfig
from pipelines.config.uri import redact_uri
from pipelines.console import Progress
from pipelines.data.index import IndexedChunk, LogIndex
from pipelines.data.reader import LogReader, as_log_error
from pipelines.data.splits import SPLITS, TimeRange, local_days, split_range
from pipelines.inspection.feature_inspection import FeatureInspector
from pipelines.inspection.label_bounds import label_bounds
from ranking.artifacts.atomic_files import check_folder, write_errors
from ranking.encoding.encoder import encode_labels
from ranking.errors import LogError
from ranking.schema import Schema


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

    def to_json(self) -> dict[str, Any]:
        """Return rows, mean, low and high; the latter are None without rows."""
        low, high = (self.low, self.high) if self.rows else (None, None)
        return {"rows": self.rows, "mean": self.mean, "low": low, "high": high}


@dataclass
class LogProfile:
    """Statistics of a log after cleaning.

    Attributes:
        rows: number of usable rows per split.
        duplicates: number of exact duplicates that were dropped.
        replaced: number of rows that a later folder of the log replaces.
        bad: number of bad rows per reason.
        first_bad: position of the first bad row, for messages; None without bad rows.
        nulls: number of null values per feature, after the look-up in the side tables.
        labels: statistics per split and task.
        days: number of usable rows per day.
        label_bounds: smallest and largest valid label of each regression, configured or estimated; None for no bound.
        features: the features in the training split.
        index: positions of the usable rows.
    """

    features: FeatureInspector
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    duplicates: int = 0
    replaced: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    first_bad: str | None = None
    nulls: Counter[str] = field(default_factory=Counter)
    labels: dict[str, dict[str, LabelProfile]] = field(default_factory=dict)
    days: Counter[date] = field(default_factory=Counter)
    label_bounds: dict[str, list[float | None]] = field(default_factory=dict)
    index: LogIndex = field(default_factory=lambda: LogIndex([]))

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``survey.json``."""
        total = sum(self.rows.values())
        return {
            "rows": dict(self.rows),
            "duplicates": self.duplicates,
            "replaced": self.replaced,
            "bad": dict(self.bad),
            "label_bounds": self.label_bounds,
            "null_rate": {name: count / max(total, 1) for name, count in self.nulls.items()},
            "labels": {
                split: {task: label.to_json() for task, label in labels.items()}
                for split, labels in self.labels.items()
            },
        }

    def to_text(self) -> str:
        """Return the profile as text for the terminal."""
        lines = ["rows: " + ", ".join(f"{split} {count:,}" for split, count in self.rows.items())]
        lines.append(f"exact duplicates dropped: {self.duplicates:,}")
        if self.replaced:
            lines.append(f"rows replaced by later folders of logs.path: {self.replaced:,}")
        lines.append(f"bad rows dropped: {self.bad.total():,}")
        lines += [f"  {count:,} × {reason}" for reason, count in self.bad.most_common()]
        lines.append("mean label by split (the rate of a binary label; after the transform, if any):")
        for task in self.labels[SPLITS[0]]:
            cells = []
            for split in SPLITS:
                label = self.labels[split][task]
                cells.append(f"{split} {'–' if label.mean is None else format(label.mean, '.5f')} of {label.rows:,}")
            lines.append(f"  {task:<{_width(self.labels[SPLITS[0]], 16)}} " + "   ".join(cells))
        total = max(sum(self.rows.values()), 1)
        for task, (low, high) in self.label_bounds.items():
            if not (low is None and high is None):
                bounds = " to ".join("–" if bound is None else f"{bound:g}" for bound in (low, high))
                lines.append(f"valid labels of {task}: {bounds}")
        lines.append("features with nulls after the look-up:")
        nulls = {name: count for name, count in self.nulls.most_common() if count}
        lines += [f"  {name:<{_width(nulls, 24)}} {count / total:>7.2%}" for name, count in nulls.items()] or ["  none"]
        return "\n".join(lines)


def _width(names: Iterable[str], least: int) -> int:
    """Return the width of a column of names."""
    return max([least, *map(len, names)])


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
    labels = {split: {task.name: LabelProfile() for task in schema.tasks} for split in SPLITS}
    profile = LogProfile(FeatureInspector(schema), labels=labels, label_bounds=label_bounds(schema))
    progress = Progress("reading the log", unit="rows")
    with open_quarantine(quarantine) as stream:
        for chunk in reader.scan(TimeRange(since=logs.train_from)):
            progress.advance(chunk.rows.num_rows)
            profile.duplicates += chunk.duplicates
            profile.replaced += chunk.replaced
            profile.bad.update(chunk.bad["reason"].to_pylist())
            write_bad_rows(chunk.bad, stream)
            if profile.first_bad is None:
                profile.first_bad = first_bad_row(chunk.bad)
            profile.days += count_days(chunk.rows[schema.columns.time])
            rows_by_split = {}
            for split in SPLITS:
                with as_log_error(chunk.file):
                    rows = split_range(logs, split).select(chunk.rows, schema.columns.time)
                rows_by_split[split] = rows.num_rows
                if rows.num_rows:
                    _count(profile, split, rows, schema)
                    if split == "train":
                        profile.features.add(rows)
                        if on_train is not None:
                            with as_log_error(chunk.file):
                                on_train(rows)
            profile.index.entries.append(IndexedChunk(chunk.chunk, rows_by_split, chunk.excluded))
    progress.close()
    if not sum(profile.rows.values()):
        reason = f"all rows are bad: {dict(profile.bad)}" if profile.bad else "the log is empty"
        raise LogError(f"{redact_uri(logs.path)}: no usable row, {reason}")
    return profile


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
    counts = pc.value_counts(local_days(times))
    return Counter(dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)))


@contextmanager
def open_quarantine(path: Path | None) -> Iterator[IO[str]]:
    """Open a quarantine file for ``write_bad_rows``; None discards the rows.

    Raises:
        OutputError: the file cannot be written.
    """
    if path is not None:
        check_folder(path.parent)
    file = path or Path(os.devnull)
    with write_errors(file), file.open("w") as stream:
        yield stream


def write_bad_rows(bad: pa.Table, stream: IO[str]) -> None:
    """Append ``ScannedChunk.bad`` to a quarantine file, one JSON object per line."""
    for record in bad.to_pylist():
        row = record.pop("row")
        stream.write(json.dumps(record, ensure_ascii=False)[:-1] + f', "row": {row}}}\n')


def first_bad_row(bad: pa.Table) -> str | None:
    """Return the position of the first row of ``ScannedChunk.bad`` for a message; None without rows."""
    if not bad.num_rows:
        return None
    first = bad.slice(0, 1).to_pylist()[0]
    return f"{first['file']}, row {first['file_row']}"
