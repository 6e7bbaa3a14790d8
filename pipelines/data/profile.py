"""One pass over a whole log: what it holds, what is wrong with it, how time splits it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from pipelines.config.config import Config, LogsConfig
from pipelines.config.uri import redact_uri
from pipelines.console import Progress
from pipelines.data.days import count_days, format_gaps, missing_days
from pipelines.data.index import IndexedChunk, LogIndex
from pipelines.data.reader import LogReader, as_log_error
from pipelines.data.splits import SPLITS, rows_in_range, split_range
from ranking.artifacts.atomic_files import os_error_text, check_folder
from ranking.encoding.encoder import encode_labels
from ranking.errors import LogError, OutputError
from ranking.schema import Schema


@dataclass
class LabelProfile:
    """A label in one split: rows that have one, and its mean after the task's transform (a rate if binary)."""

    rows: int = 0
    total: float = 0.0
    low: float = float("inf")
    high: float = float("-inf")

    @property
    def mean(self) -> float | None:
        """Mean label; None without rows."""
        return self.total / self.rows if self.rows else None


@dataclass
class LogProfile:
    """What a log holds.

    Attributes:
        rows: rows by split, after cleaning.
        duplicates: exact repeats left out.
        bad: rows left out, by reason.
        nulls: null values by feature, after look-up.
        labels: split → task → label.
        days: rows by day, after cleaning.
        index: where the rows of each split are.
    """

    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    duplicates: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    nulls: Counter[str] = field(default_factory=Counter)
    labels: dict[str, dict[str, LabelProfile]] = field(default_factory=dict)
    days: Counter[date] = field(default_factory=Counter)
    index: LogIndex = field(default_factory=lambda: LogIndex([]))

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form."""
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
        """The same for a person."""
        lines = ["rows: " + ", ".join(f"{split} {count:,}" for split, count in self.rows.items())]
        lines.append(f"exact duplicates left out: {self.duplicates:,}")
        lines.append(f"bad rows left out: {self.bad.total():,}")
        lines += [f"  {count:,} × {reason}" for reason, count in self.bad.most_common()]
        lines.append("labels, mean by split (a rate if binary; after the transform if there is one):")
        for task in self.labels[SPLITS[0]]:
            cells = []
            for split in SPLITS:
                label = self.labels[split][task]
                cells.append(f"{split} {'–' if label.mean is None else format(label.mean, '.5f')} of {label.rows:,}")
            lines.append(f"  {task:<16} " + "   ".join(cells))
        total = max(sum(self.rows.values()), 1)
        lines.append("features with nulls, after look-up:")
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
    """Reads the log once, from ``logs.train_from`` on.

    Args:
        reader: the log.
        logs: where time splits it.
        schema: features and tasks.
        quarantine: where bad rows go, a JSON object a line: file, file_row, reason, row. None: nowhere.
        on_train: called with every cleaned batch of the training split.

    Raises:
        LogError: the log cannot be read, or no row can be used.
        OutputError: the quarantine cannot be written.
    """
    found = LogProfile(labels={split: {task.name: LabelProfile() for task in schema.tasks} for split in SPLITS})
    progress = Progress("reading the log", unit="rows")
    with open_quarantine(quarantine) as sink:
        for cleaned in reader.scan(since=logs.train_from):
            progress.advance(cleaned.rows.num_rows)
            found.duplicates += cleaned.duplicates
            found.bad.update(cleaned.bad["reason"].to_pylist())
            write_bad_rows(cleaned.bad, sink)
            found.days += count_days(cleaned.rows[schema.columns.time])
            usable = {}
            for split in SPLITS:
                rows = rows_in_range(cleaned.rows, schema.columns.time, *split_range(logs, split))
                usable[split] = rows.num_rows
                if rows.num_rows:
                    _count(found, split, rows, schema)
                    if split == "train" and on_train is not None:
                        with as_log_error(cleaned.file):
                            on_train(rows)
            found.index.entries.append(IndexedChunk(cleaned.chunk, usable, cleaned.excluded))
    progress.close()
    if not sum(found.rows.values()):
        why = f"all rows are bad: {dict(found.bad)}" if found.bad else "the log is empty"
        raise LogError(f"{redact_uri(logs.path)}: no usable row, {why}")
    return found


def require_learnable(found: LogProfile, config: Config) -> None:
    """Refuses a log from which some task cannot be learnt or judged.

    Raises:
        LogError: an empty training or validation split, days that are missing, or a label that is absent or constant
            in training.
    """
    logs = config.logs
    path = redact_uri(logs.path)
    if found.rows["train"] < 2:
        raise LogError(f"{path}: no row before logs.validation_from = {logs.validation_from}: nothing to train on")
    if not found.rows["validation"]:
        raise LogError(
            f"{path}: no row from {logs.validation_from} to {logs.test_from}: nothing to validate on; "
            "move logs.validation_from or logs.test_from"
        )
    gaps = missing_days(found.days)
    if gaps and not logs.allow_missing_days:
        raise LogError(
            f"{path}: no usable row on {format_gaps(gaps)}, between {min(found.days)} and {max(found.days)}; restore "
            "these days, fix times that are far off, or set logs.allow_missing_days = true"
        )
    for task in config.tasks:
        label = found.labels["train"][task.name]
        if not label.rows:
            absent = "null" if task.mask is None else "null or masked"
            raise LogError(
                f"{path}: label '{task.label}' of task '{task.name}' is {absent} in every training row; drop the task"
            )
        if label.low == label.high:
            raise LogError(
                f"{path}: label '{task.label}' of task '{task.name}' is {label.low:g} in every training row: "
                "a constant cannot be learnt; drop the task or mend the label"
            )


def _count(found: LogProfile, split: str, rows: pa.Table, schema: Schema) -> None:
    found.rows[split] += rows.num_rows
    for feature in schema.inputs:
        found.nulls[feature.name] += rows[feature.column].null_count
    labels = encode_labels(rows, schema.tasks)
    for i, task in enumerate(schema.tasks):
        known = labels[:, i][~np.isnan(labels[:, i])].astype(np.float64)
        if len(known):
            label = found.labels[split][task.name]
            label.rows += len(known)
            label.total += float(known.sum())
            label.low, label.high = min(label.low, float(known.min())), max(label.high, float(known.max()))


def write_bad_rows(bad: pa.Table, stream: IO[str]) -> None:
    """Appends ``Cleaned.bad`` to a quarantine, a JSON object a line."""
    for record in bad.to_pylist():
        row = record.pop("row")
        stream.write(json.dumps(record, ensure_ascii=False)[:-1] + f', "row": {row}}}\n')


@contextmanager
def open_quarantine(path: Path | None) -> Iterator[IO[str]]:
    """Where bad rows are written; None: nowhere.

    Raises:
        OutputError: it cannot be written.
    """
    if path is not None:
        check_folder(path.parent)
    try:
        with open(path or os.devnull, "w") as stream:  # noqa: PTH123 — os.devnull is a plain name
            yield stream
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({os_error_text(error)})") from None
