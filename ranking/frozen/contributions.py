"""Contributions of features to logits: integrated gradients on the frozen graph, in NumPy.

Integrated gradients (Sundararajan et al. 2017, "Axiomatic attribution for deep networks", arXiv 1703.01365) multiply
the difference between an input and a baseline by the mean gradient on the straight line between the two. The
contributions of all inputs add up to the difference of the outputs. The baseline is a row without any feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranking.encoding.batch import EncodedBatch, Int64
from ranking.encoding.encoder import Encoder
from ranking.frozen.calibration import Calibration
from ranking.frozen.embedding_rows import EmbeddingRows
from ranking.frozen.line_gradients import Float64, LineGradients
from ranking.frozen.weights import FrozenModel, Weights
from ranking.schema import PooledFeature

FLOOR = 0.1
"""Difference of logits below which errors are relative to this value."""
SEGMENT_TOLERANCE = 0.0003
"""Error of the sum of contributions over a segment of a line above which the segment is halved, relative to the larger
of |logit − baseline| and ``FLOOR``."""
MIN_DIFFERENCE = 1e-6
"""Difference of outputs below which the calibration's slope is measured over this distance."""


@dataclass(frozen=True)
class Contributions:
    """Contributions of features to the calibrated outputs of some rows, before the sigmoid of binary tasks.

    Attributes:
        features: names of the features.
        tasks: names of the tasks.
        baseline: output of each task if every feature is missing [tasks].
        outputs: output of each row [rows, tasks]: logits (binary) and (transformed) values (regression).
        values: contributions [rows, tasks, features]; ``baseline`` plus the sum over features is ``outputs``.
        gradients: number of gradients that were computed.
        error: maximum error of the sums before it was divided among the features, relative to the larger of
            |output − baseline| and ``FLOOR``.
    """

    features: list[str]
    tasks: list[str]
    baseline: Float64
    outputs: Float64
    values: Float64
    gradients: int
    error: float


class _Model(NamedTuple):
    """A model with the embedding of a row without any feature [1, inputs]."""

    weights: Weights
    lines: LineGradients
    missing: Float64


class ContributionsGraph:
    """Computes contributions to the mean of models with static gates.

    Args:
        encoder: encoder of the models' inputs.
        models: the models.
        calibration: calibration of the mean of their outputs. Contributions are scaled by the slope of the line from
            the calibrated baseline to the calibrated output, which is exact for ``Platt``.
    """

    def __init__(self, encoder: Encoder, models: Sequence[FrozenModel], calibration: Calibration) -> None:
        schema = encoder.schema
        self._schema, self._bins, self._calibration = schema, encoder.bins, calibration
        flagged = [number for number in schema.numerics if encoder.scales[number.name].has_missing_indicator]
        self.features = [feature.name for feature in (*schema.sparse, *schema.numerics)]
        owners = [feature.name for feature in schema.sparse for _ in range(feature.dim)]
        owners += [number.name for number in (*schema.numerics, *flagged)]
        owners += [schema.numerics[column].name for column in encoder.bins.columns]
        self._owners = np.array([[owner == name for name in self.features] for owner in owners], np.float64)
        nulls = pa.table({column: pa.nulls(1) for column in {feature.column for feature in schema.inputs}})
        missing = encoder.encode(nulls)
        self._models = [
            _Model(model.weights, LineGradients(model), self._embed(model.weights, missing)) for model in models
        ]

    def __call__(self, inputs: EncodedBatch, tasks: Sequence[str]) -> Contributions:
        """Return the contributions of every feature to these tasks.

        Args:
            inputs: encoded rows.
            tasks: names of the tasks.
        """
        names = list(tasks)
        parts = [self._of_model(model, inputs, names) for model in self._models]
        baseline, outputs, values = (np.mean(arrays, 0) for arrays in list(zip(*parts, strict=True))[:3])
        residuals = outputs - baseline - values.sum(2)
        error = float((np.abs(residuals) / _scales(outputs - baseline)).max(initial=0.0))
        values = _add_in_proportion(values, residuals)
        count = sum(part[3] for part in parts)
        return self._calibrated(Contributions(self.features, names, baseline, outputs, values, count, error))

    def _of_model(
        self, model: _Model, inputs: EncodedBatch, tasks: Sequence[str]
    ) -> tuple[Float64, Float64, Float64, int]:
        """Return a model's baseline, outputs and contributions before calibration, and the number of gradients."""
        x = self._embed(model.weights, inputs)
        outputs, baseline = model.lines.outputs(x, tasks), model.lines.outputs(model.missing, tasks)[0]
        limits = SEGMENT_TOLERANCE * _scales(outputs - baseline)
        gradients, count = model.lines.mean_gradients(model.missing, x, tasks, limits)
        values = (((x - model.missing) * gradients) @ self._owners).swapaxes(0, 1)
        return baseline, outputs, values, count

    def _embed(self, weights: Weights, inputs: EncodedBatch) -> Float64:
        """Concatenate embeddings, dense values and their encoding in bins [rows, inputs]."""
        columns = [
            EmbeddingRows.of(weights, feature.table).take(inputs.ids[:, i])
            for i, feature in enumerate(self._schema.categoricals)
        ]
        for feature, bag in zip(self._schema.bags, inputs.bags, strict=True):
            columns.append(_pool(EmbeddingRows.of(weights, feature.table), bag.values, bag.lengths, feature))
        return np.concatenate([*columns, inputs.dense, self._bins.encode(inputs.dense)], 1).astype(np.float64)

    def _calibrated(self, result: Contributions) -> Contributions:
        """Scale the contributions so that they add up to the calibrated outputs."""
        tasks, baseline = result.tasks, result.baseline
        difference = result.outputs - baseline
        difference = np.where(np.abs(difference) < MIN_DIFFERENCE, MIN_DIFFERENCE, difference)
        start = self._calibration(baseline[None], tasks)[0].astype(np.float64)
        slope = (self._calibration(baseline + difference, tasks) - start) / difference
        outputs = self._calibration(result.outputs, tasks).astype(np.float64)
        values = result.values * slope[:, :, None]
        return Contributions(result.features, tasks, start, outputs, values, result.gradients, result.error)


def _pool(
    table: EmbeddingRows, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], feature: PooledFeature
) -> npt.NDArray[Any]:
    """Return the pooled embeddings of each list [rows, dim]; 0 for an empty list."""
    pooled = np.zeros((len(lengths), table.numbers.shape[1]))
    np.add.at(pooled, np.repeat(np.arange(len(lengths)), lengths), table.take(ids))
    divisors: Int64 = feature.divisors(lengths)
    return pooled / divisors[:, None]


def _add_in_proportion(values: Float64, residuals: Float64) -> Float64:
    """Divide the error of each sum among its contributions, in proportion to their sizes.

    Args:
        values: contributions [rows, tasks, features].
        residuals: error of each sum [rows, tasks].
    """
    sizes = np.abs(values)
    totals = sizes.sum(2, keepdims=True)
    shares: Float64 = np.divide(sizes, totals, out=np.zeros_like(sizes), where=totals > 0)
    return values + residuals[:, :, None] * shares


def _scales(differences: Float64) -> Float64:
    """Return the size of differences of outputs that errors are relative to."""
    return np.maximum(np.abs(differences), FLOOR)
