"""Judgment of a log by its profile: errors, which prevent a training, and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from itertools import pairwise

from pipelines.config.config import Config
from pipelines.config.uri import redact_uri
from pipelines.inspection.profile import LogProfile
from ranking.errors import LogError
from ranking.schema import Schema, Task

MAX_GAPS = 10
"""Maximum number of gaps between days that a message lists."""
MAX_REASONS = 3
"""Maximum number of reasons of bad rows that a message lists."""
MIN_TRAINING_LABELS = 100
"""With fewer training labels, or fewer of one class, a task learns little and its gate selects experts at random."""
MIN_EVALUATION_LABELS = 10
"""With fewer labels of one class in a split, the AUC of this split is mostly noise."""
LATE_HISTORY_NULLS = 0.5
"""Share of rows without a history from which a hint is given."""


def require_learnable(profile: LogProfile, config: Config) -> None:
    """Check that every task can be trained and validated on a log.

    Raises:
        LogError: the log has an error; see ``find_errors``.
    """
    errors = find_errors(profile, config)
    if errors:
        others = f" (and {len(errors) - 1} more; see 'ranker check')" if len(errors) > 1 else ""
        raise LogError(f"{redact_uri(config.logs.path)}: {errors[0]}{others}")


def find_errors(profile: LogProfile, config: Config) -> list[str]:
    """Return the reasons why a log cannot be used for training, the most fundamental first.

    There are too many bad rows, the training or validation split is empty, days are missing, or a label is absent or
    constant in the training split.
    """
    return [*_bad_row_errors(profile, config), *_split_errors(profile, config), *_label_errors(profile, config)]


def find_warnings(profile: LogProfile, config: Config) -> list[str]:
    """Return descriptions of what makes a trained model or its evaluation less reliable."""
    return [*_test_split_warnings(profile, config), *_label_warnings(profile, config), *profile.features.warnings()]


def find_late_histories(profile: LogProfile, schema: Schema) -> list[str]:
    """Return a hint for each history that most rows do not have because its labels are known late."""
    rows, hints = sum(profile.rows.values()), []
    for history in schema.histories:
        share = profile.nulls[history.name] / max(rows, 1)
        if history.delay_seconds is None and share > LATE_HISTORY_NULLS:
            hints.append(
                f"history '{history.name}' is null in {share:.0%} of the rows: the labels of a day are known from the "
                "next midnight on. If they are known earlier, say when with a delay, such as delay = '1h'"
            )
    return hints


def _split_errors(profile: LogProfile, config: Config) -> Iterator[str]:
    logs = config.logs
    if profile.rows["train"] < 2:
        yield f"no row before logs.validation_from = {logs.validation_from}: nothing to train on"
    if not profile.rows["validation"]:
        yield (
            f"no row from {logs.validation_from} to {logs.test_from}: nothing to validate on; "
            "move logs.validation_from or logs.test_from"
        )
    gaps = missing_days(profile.days)
    if gaps and not logs.allow_missing_days:
        yield (
            f"no usable row on {format_gaps(gaps)}, between {min(profile.days)} and {max(profile.days)}; "
            "restore these days, fix timestamps that are far off, or set logs.allow_missing_days = true"
        )


def _bad_row_errors(profile: LogProfile, config: Config) -> Iterator[str]:
    bad, limit = profile.bad.total(), config.logs.max_bad_rows
    rows = bad + sum(profile.rows.values())
    if bad <= limit * rows:
        return
    counts = [f"{count:,} × {reason}" for reason, count in profile.bad.most_common(MAX_REASONS)]
    if len(profile.bad) > MAX_REASONS:
        counts.append(f"{len(profile.bad) - MAX_REASONS} other reasons")
    yield (
        f"{bad:,} of {rows:,} rows are bad, more than logs.max_bad_rows = {limit:g} allows "
        f"({'; '.join(counts)}; the first is {profile.first_bad}): fix the log, the features or the tasks, "
        "or raise the limit with --max-bad-rows; 'ranker check --quarantine FILE' writes the bad rows"
    )


def _label_errors(profile: LogProfile, config: Config) -> Iterator[str]:
    if not profile.rows["train"]:
        return
    for task in config.tasks:
        label = profile.labels["train"][task.name]
        where = f"label '{task.label}' of task '{task.name}' is"
        if not label.rows:
            yield f"{where} {'null' if task.mask is None else 'null or masked'} in every training row; drop the task"
        elif label.low == label.high:
            yield (
                f"{where} {label.low:g} in every training row: a constant cannot be learned; "
                "drop the task or fix the label"
            )


def _test_split_warnings(profile: LogProfile, config: Config) -> Iterator[str]:
    if not profile.rows["test"]:
        yield (
            f"no row from logs.test_from = {config.logs.test_from} on: the test split is empty, "
            "so that the model is not evaluated"
        )


def _label_warnings(profile: LogProfile, config: Config) -> Iterator[str]:
    for split, rows in profile.rows.items():
        for task in config.tasks if rows else ():
            label = profile.labels[split][task.name]
            where = f"label '{task.label}' of task '{task.name}'"
            if split != "train" and not label.rows:
                yield f"{where} is absent in every {split} row: the task is not measured there"
            elif split != "train" and task.kind == "binary" and label.low == label.high:
                yield f"{where} is {label.low:g} in every {split} row: AUC is undefined with one class"
            else:
                yield from _rare_label_warnings(profile, split, task)


def _rare_label_warnings(profile: LogProfile, split: str, task: Task) -> Iterator[str]:
    label = profile.labels[split][task.name]
    least = MIN_TRAINING_LABELS if split == "train" else MIN_EVALUATION_LABELS
    positives = round(label.total) if task.kind == "binary" else label.rows
    classes = {"positive": positives, "negative": label.rows - positives} if task.kind == "binary" else {"": positives}
    for name, count in classes.items():
        if 0 < count < least:
            labels = f"{name} label{'' if count == 1 else 's'}".lstrip()
            yield (
                f"task '{task.name}' has only {count:,} {labels} in the {split} split, "
                f"fewer than {least}: {'it learns little from them' if split == 'train' else 'its measures are noisy'}"
            )


def missing_days(days: Iterable[date]) -> list[tuple[date, date]]:
    """Return the first and last day of each gap between the given days."""
    day = timedelta(days=1)
    return [(before + day, after - day) for before, after in pairwise(sorted(days)) if after - before > day]


def format_gaps(gaps: list[tuple[date, date]]) -> str:
    """Return gaps as text for a message."""
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in gaps[:MAX_GAPS]]
    omitted = len(gaps) - len(texts)
    return ", ".join(texts) + (f" and {omitted} more gaps" if omitted else "")
