"""Inspection of the features in the training split: absent and constant features, and copies of a label.

The whole split is searched for absent and constant features. Copies of a label are searched in a sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.data.dedup import value_hashes
from ranking.encoding.encoder import encode_labels
from ranking.encoding.encoder_fitter import MIN_INDICATED, has_indicator
from ranking.encoding.row_sample import Matrix, Positions, number_sample, row_keys
from ranking.metrics.binary import auc
from ranking.schema import InputFeature, NumberFeature, Schema, Task
from ranking.schema.value_text import value_text

SAMPLED_ROWS = 10_000
"""Maximum number of training rows in which copies of a label are searched."""
MIN_CLASS_ROWS = 10
"""Copies of a binary label are searched only if the sample has this many rows of both classes."""
MIN_LABELS = 20
"""Copies of a regression label are searched only if the sample has this many labels."""
COPY_AUC = 0.99
"""A feature that alone ranks the rows of a binary task with at least this AUC is reported as a copy of the label."""
COPY_CORRELATION = 0.999
"""The same for a regression: rank correlation between the feature and the label."""
MAX_FEATURES = 10
"""Maximum number of features with rare nulls that a message lists."""
HASH_BITS = np.uint64((1 << 53) - 1)
"""The bits of a hash that float64 holds exactly."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Association:
    """Strength with which a feature alone predicts a label.

    Attributes:
        feature: the feature.
        task: the task.
        measure: AUC for a binary task, rank correlation for a regression.
        strength: value of the measure; 0 if the sample is too small.
        rows: number of sampled rows with a label.
    """

    feature: InputFeature
    task: Task
    measure: str
    strength: float
    rows: int

    @property
    def is_copy(self) -> bool:
        """Whether the feature can only be a copy of the label."""
        return self.strength >= (COPY_AUC if self.task.kind == "binary" else COPY_CORRELATION)


class FeatureInspector:
    """Collects what is needed to judge the features of a log; call ``add`` per table of the training split.

    Parts of a log are added by ``part`` and ``merge``, as with ``EncoderFitter``.

    Args:
        schema: features and tasks.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._sample = number_sample(SAMPLED_ROWS)
        self._candidates: dict[str, Any] = {}  # the first value of each feature
        self._hashes: dict[str, np.uint64] = {}
        self._varying: set[str] = set()
        self._nulls: Counter[str] = Counter()
        self._rows = 0

    def add(self, rows: pa.Table, positions: Positions) -> None:
        """Add usable rows of the training split, and the position of each in the log [rows]."""
        self._rows += rows.num_rows
        self._sample.add(row_keys(positions), lambda chosen: self._encode(rows.take(chosen)))
        for feature in self._schema.inputs:
            column = rows[feature.column].combine_chunks()
            self._nulls[feature.name] += column.null_count
            if feature.name in self._varying:
                continue
            column = column.drop_null()
            if not len(column):
                continue
            hashes = value_hashes(column)
            first = self._hashes.setdefault(feature.name, hashes[0])
            self._candidates.setdefault(feature.name, column[0].as_py())
            if (hashes != first).any():
                self._varying.add(feature.name)

    def part(self) -> Self:
        """Return an empty inspector for a part of the log."""
        part = type(self)(self._schema)
        part._sample, part._varying = self._sample.part(), set(self._varying)
        return part

    def merge(self, part: Self) -> None:
        """Add a part of the log, which follows the parts before."""
        self._rows += part._rows
        self._sample.merge(part._sample)
        self._nulls += part._nulls
        self._varying |= part._varying
        for name, value in part._candidates.items():
            self._candidates.setdefault(name, value)
            if self._hashes.setdefault(name, part._hashes[name]) != part._hashes[name]:
                self._varying.add(name)

    def warnings(self) -> Iterator[str]:
        """Yield a message for each absent or constant feature, then for each copy of a label."""
        if not self._rows:
            return
        for feature in self._schema.inputs:
            name = feature.name
            if name in self._varying or (name in self._candidates and self._nulls[name]):
                continue
            value = value_text(self._candidates.get(name))
            yield (
                f"feature '{name}' is {value} in every training row: the model cannot learn from it; "
                f"fix column '{feature.column}' or remove the feature"
            )
        yield from self._rare_nulls()
        yield from self._copies()

    def _rare_nulls(self) -> Iterator[str]:
        """Yield a message if the nulls of columns of the log are too rare to be learned."""
        numbers = [number for number in self._schema.logged.numerics if number.default is None]
        nulls = {number.name: self._nulls[number.name] for number in numbers}
        rare = {name: count for name, count in nulls.items() if count and not has_indicator(count, self._rows)}
        if rare:
            listed = ", ".join(f"'{name}' in {count:,}" for name, count in list(rare.items())[:MAX_FEATURES])
            more = f" and {len(rare) - MAX_FEATURES} more" if len(rare) > MAX_FEATURES else ""
            yield (
                f"nulls in less than {MIN_INDICATED:.0%} of the {self._rows:,} training rows are read as the mean, "
                f"because the model cannot learn what so few mean: {listed}{more}"
            )

    def _encode(self, rows: pa.Table) -> Matrix:
        """Return numbers, or hashes of ids and lists, and the labels [rows, inputs + tasks]; NaN where null."""
        columns = []
        for feature in self._schema.inputs:
            column = rows[feature.column].combine_chunks()
            if isinstance(feature, NumberFeature):
                columns.append(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))
            elif pa.types.is_null(column.type):
                columns.append(np.full(len(column), np.nan))
            else:
                hashes = (value_hashes(column) & HASH_BITS).astype(np.float64)
                columns.append(np.where(column.is_null().to_numpy(zero_copy_only=False), np.nan, hashes))
        labels = encode_labels(rows, self._schema.tasks).astype(np.float64)
        return np.concatenate([np.stack(columns, axis=1), labels], axis=1)

    def associations(self) -> Iterator[Association]:
        """Yield how well each feature alone predicts each label in a sample."""
        sample = self._sample.rows()
        if sample is None:
            return
        features = self._schema.inputs
        for i, task in enumerate(self._schema.tasks):
            labels = sample[:, len(features) + i]
            known = ~np.isnan(labels)
            for j, feature in enumerate(features):
                measure, strength = _association(sample[known, j], labels[known], feature, task)
                yield Association(feature, task, measure, strength, int(known.sum()))

    def _copies(self) -> Iterator[str]:
        for found in self.associations():
            if found.is_copy:
                yield (
                    f"feature '{found.feature.name}' predicts label '{found.task.label}' of task '{found.task.name}' "
                    f"almost perfectly ({found.measure} {found.strength:.4f} in a sample of {found.rows:,} training "
                    f"rows): check that column '{found.feature.column}' is known before the impression, or remove the "
                    "feature"
                )


def _association(values: Array, labels: Array, feature: InputFeature, task: Task) -> tuple[str, float]:
    """Return how strongly a feature alone predicts a label: the measure and its value."""
    known = ~np.isnan(values)
    score, target = _predictor(values[known], labels[known], feature)
    if task.kind == "regression":
        return "rank correlation", _rank_correlation(score, target)
    return "AUC", max(_separation(score, target), _separation(known.astype(np.float64), labels))


def _predictor(values: Array, labels: Array, feature: InputFeature) -> tuple[Array, Array]:
    """Return one number per row that orders the rows by a feature, and the labels of these rows.

    A number orders the rows itself. For ids and lists, this is the mean label of the same value in every second row,
    applied to the other rows, because the mean of a rare value over its own rows would copy the label.
    """
    if isinstance(feature, NumberFeature) or len(values) < 2:
        return values, labels
    _, codes = np.unique(values, return_inverse=True)
    fitted, other = slice(0, None, 2), slice(1, None, 2)
    counts = np.bincount(codes[fitted], minlength=codes.max() + 1)
    sums = np.bincount(codes[fitted], labels[fitted], minlength=codes.max() + 1)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), labels[fitted].mean())
    return means[codes[other]], labels[other]


def _separation(scores: Array, labels: Array) -> float:
    """Return max(AUC, 1 − AUC); 0 if a class has too few rows to tell."""
    positives = labels > 0.5
    count = int(positives.sum())
    if min(count, len(labels) - count) < MIN_CLASS_ROWS:
        return 0.0
    value = auc(positives.astype(np.float64), scores)
    assert value is not None  # both classes occur
    return max(value, 1 - value)


def _rank_correlation(scores: Array, labels: Array) -> float:
    """Return the absolute rank correlation (Spearman); 0 if it is undefined or the rows are too few to tell."""
    if len(scores) < MIN_LABELS:
        return 0.0
    a, b = _ranks(scores), _ranks(labels)
    scale = a.std() * b.std()
    return float(abs(((a - a.mean()) * (b - b.mean())).mean()) / scale) if scale else 0.0


def _ranks(values: Array) -> Array:
    """Return the rank of each value, starting at 1; equal values have their mean rank."""
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Array = (ends - (counts - 1) / 2)[codes]
    return ranks
