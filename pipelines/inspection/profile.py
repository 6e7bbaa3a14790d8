"""Profile of a log: one pass that counts rows, labels, nulls and days, and indexes the usable rows."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path
from typing import IO, Any, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config.config import LogsConfig
from pipelines.config.uri import redact_uri
from pipelines.data.file_scans import FileCall, scan_files
from pipelines.data.index import IndexedChunk, LogIndex
from pipelines.data.reader import LogReader, ScannedChunk, as_log_error, open_log, take_rows
from pipelines.data.splits import SPLITS, TimeRange, local_days, split_range
from pipelines.engines import Engine
from pipelines.inspection.feature_inspection import FeatureInspector
from pipelines.inspection.label_bounds import label_bounds
from pipelines.work_folder import open_work_folder
from ranking.artifacts.atomic_files import check_folder, write_errors
from ranking.encoding.encoder import encode_labels
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.errors import LogError
from ranking.schema import Schema

ROW_BITS = 40
"""Number of bits of the position of a row that are its position in its file; the others number the file."""


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

    def merge(self, part: Self) -> None:
        """Add the labels of other rows."""
        self.rows += part.rows
        self.total += part.total
        self.low, self.high = min(self.low, part.low), max(self.high, part.high)

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

    @classmethod
    def empty(cls, schema: Schema) -> Self:
        """Return a profile without rows."""
        labels = {split: {task.name: LabelProfile() for task in schema.tasks} for split in SPLITS}
        return cls(FeatureInspector(schema), labels=labels, label_bounds=label_bounds(schema))

    def part(self) -> Self:
        """Return a profile without rows for a file of the log, which ``merge`` adds."""
        labels = {split: {task: LabelProfile() for task in labels} for split, labels in self.labels.items()}
        return type(self)(self.features.part(), labels=labels, label_bounds=self.label_bounds)

    def merge(self, part: Self) -> None:
        """Add the profile of a file, which follows the files before."""
        self.features.merge(part.features)
        for split in SPLITS:
            self.rows[split] += part.rows[split]
            for task, label in part.labels[split].items():
                self.labels[split][task].merge(label)
        self.duplicates += part.duplicates
        self.replaced += part.replaced
        self.bad.update(part.bad)
        self.first_bad = self.first_bad or part.first_bad
        self.nulls.update(part.nulls)
        self.days += part.days
        self.index.entries += part.index.entries

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


@dataclass
class _Survey:
    """Profile and bad rows that are collected while a log, or one of its files, is read.

    Attributes:
        logs: time bounds of the splits.
        schema: features and tasks.
        profile: the profile.
        fitters: fitted to the training split.
        bad_rows: open file for bad rows; None: they are only counted.
        folder: folder in which workers write a file of bad rows for each file of the log; None: not used.
        written: the file in ``folder``; None without bad rows.
    """

    logs: LogsConfig
    schema: Schema
    profile: LogProfile
    fitters: Sequence[EncoderFitter]
    bad_rows: IO[str] | None = None
    folder: Path | None = None
    written: Path | None = None


def profile_log(
    reader: LogReader,
    logs: LogsConfig,
    schema: Schema,
    quarantine: Path | None = None,
    fitters: Sequence[EncoderFitter] = (),
    engine: Engine | None = None,
) -> LogProfile:
    """Read the log once from ``logs.train_from`` on and profile it.

    Args:
        reader: the log.
        logs: the log and the time bounds of its splits.
        schema: features and tasks.
        quarantine: file for bad rows with one JSON object per line: file, file_row, reason, row. None: not written.
        fitters: are fitted to the usable rows of the training split.
        engine: lets its workers read the files of the log, which gives the same result; None: this process does.

    Raises:
        LogError: the log cannot be read, or it has no usable row.
        OutputError: the quarantine file cannot be written.
    """
    survey = _Survey(logs, schema, LogProfile.empty(schema), fitters)
    profile, time_range = survey.profile, TimeRange(since=logs.train_from)
    call = FileCall(partial(open_log, logs, schema), _survey_file, survey, time_range)
    with open_quarantine(quarantine) as stream, ExitStack() as stack:
        if engine is not None and quarantine is not None:
            survey.folder = stack.enter_context(open_work_folder("quarantine")).path
        elif quarantine is not None:
            survey.bad_rows = stream
        for file, part in scan_files(reader, call, "reading the log", engine):
            profile.merge(part.profile)
            with as_log_error(file):
                for fitter, fitted in zip(fitters, part.fitters, strict=True):
                    fitter.merge(fitted)
            if part.written is not None:
                with part.written.open() as bad_rows:
                    shutil.copyfileobj(bad_rows, stream)
                part.written.unlink()
    if not sum(profile.rows.values()):
        reason = f"all rows are bad: {dict(profile.bad)}" if profile.bad else "the log is empty"
        raise LogError(f"{redact_uri(logs.path)}: no usable row, {reason}")
    return profile


def _survey_file(chunks: Iterator[ScannedChunk], number: int, whole: _Survey) -> tuple[str, _Survey]:
    """Return the name in messages and the survey of a file of a log, of which ``whole`` has other files, or none."""
    profile, fitters = whole.profile.part(), [fitter.part() for fitter in whole.fitters]
    part, file = _Survey(whole.logs, whole.schema, profile, fitters), ""
    with ExitStack() as stack:
        stream = whole.bad_rows
        for chunk in chunks:
            file = chunk.file
            if chunk.bad.num_rows and stream is None and whole.folder is not None:
                part.written = whole.folder / uuid4().hex
                stream = stack.enter_context(open_quarantine(part.written))
            if stream is not None:
                write_bad_rows(chunk.bad, stream)
            with as_log_error(file):
                _add_chunk(part, chunk, number)
    return file, part


def _add_chunk(survey: _Survey, chunk: ScannedChunk, number: int) -> None:
    """Add a chunk of a file of the log."""
    profile, schema, time = survey.profile, survey.schema, survey.schema.columns.time
    profile.duplicates += chunk.duplicates
    profile.replaced += chunk.replaced
    profile.bad.update(chunk.bad["reason"].to_pylist())
    if profile.first_bad is None:
        profile.first_bad = first_bad_row(chunk.bad)
    profile.days += count_days(chunk.rows[time])
    positions = (number << ROW_BITS) + chunk.positions
    rows_by_split = {}
    for split in SPLITS:
        selected = split_range(survey.logs, split).positions(chunk.rows[time], time)
        rows_by_split[split] = len(selected)
        if len(selected):
            rows = take_rows(chunk.rows, selected)
            _count(profile, split, rows, schema)
            if split == "train":
                profile.features.add(rows, positions[selected])
                for fitter in survey.fitters:
                    fitter.add(rows, positions[selected])
    profile.index.entries.append(IndexedChunk(chunk.chunk, rows_by_split, chunk.excluded))


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
