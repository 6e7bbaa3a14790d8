"""Measures of a binary task: ranking quality and calibration of its probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ranking.metrics.bootstrap import UnitDraws, interval
from ranking.metrics.grouped import request_ndcg, user_auc
from ranking.metrics.labeled_scores import Array, Ids, LabeledScores

CURVE_BINS = 10
CLIP = 1e-7
"""Distance from 0 and 1 to which the log loss clips probabilities."""


def binary_measures(rows: LabeledScores, draws: UnitDraws, ndcg_at: int = 10) -> dict[str, Array]:
    """Compute each measure on the data and on each bootstrap draw [1 + B], NaN where undefined.

    Args:
        rows: at least one row.
        draws: bootstrap draws of the sampling units.
        ndcg_at: cutoff k of NDCG@k.
    """
    p = np.clip(rows.predictions, CLIP, 1 - CLIP)
    losses = -np.where(rows.labels == 1, np.log(p), np.log1p(-p))
    bins = quantile_bins(rows.predictions)
    unknown = np.zeros(len(rows))
    by_user_day = (unknown, unknown) if rows.days is None else user_auc(rows, rows.days)
    grouped = (*user_auc(rows), *by_user_day, *request_ndcg(rows, ndcg_at))
    columns = [np.ones(len(rows)), rows.labels, rows.predictions, losses, *grouped]
    sums = draws.sums(rows.units, [*columns, *_by_bin(rows.labels - rows.predictions, bins)])
    count, positives, predicted, loss, user_aucs, user_rows, day_aucs, day_rows, ndcgs, requests, *gaps = sums
    measures = {"auc": auc_draws(rows, draws)}
    with np.errstate(divide="ignore", invalid="ignore"):
        # Mean AUC of the users with both classes, weighted by their rows: Zhu et al. 2017, section 3.2; then of the
        # rows of one user on one day.
        for name, aucs, weights, contributes in (
            ("gauc", user_aucs, user_rows, grouped[1]),
            ("gauc_by_user_day", day_aucs, day_rows, grouped[3]),
        ):
            gauc = aucs / weights if draws.units.kind == "user" else np.full_like(count, np.nan)
            measures[name] = draws.without_draws_if_single(gauc, rows.units[contributes > 0])
        # Mean cross-entropy in nats.
        measures["logloss"] = loss / count
        # Log loss divided by that of the base rate: He et al. 2014, equation 1
        measures["normalised_entropy"] = loss / count / _entropy(positives / count)
        # Mean prediction divided by the base rate: He et al. 2014, section 3
        measures["calibration"] = predicted / positives
        # Mean |observed − predicted| of the curve's bins, weighted by rows: Naeini et al. 2015; bins: Nixon et al. 2019
        measures["calibration_error"] = np.abs(gaps).sum(0) / count
        measures["ndcg"] = draws.without_draws_if_single(ndcgs / requests, rows.units[grouped[5] > 0])
    return {name: np.where(np.isfinite(values), values, np.nan) for name, values in measures.items()}


def calibration_curve(rows: LabeledScores, draws: UnitDraws) -> list[dict[str, Any]]:
    """Compare predicted and observed rates in about ten bins of equal size.

    Returns:
        One entry per bin by increasing prediction: ``predicted`` and ``observed`` (means), ``low`` and ``high`` (95 %
        interval of the observed rate; None if the bin contains one class only), ``rows``.
    """
    bins = quantile_bins(rows.predictions)
    parts = (np.ones(len(rows)), rows.labels, rows.predictions)
    sums = draws.sums(rows.units, (column for part in parts for column in _by_bin(part, bins)))
    curve = []
    for number, (count, positives, predicted) in enumerate(zip(*np.split(sums, len(parts)), strict=True)):
        with np.errstate(invalid="ignore"):
            observed = positives / count
        mixed = 0 < positives[0] < count[0]
        units = len(np.unique(rows.units[bins == number]))
        low, high = (interval(observed, units) if mixed else None) or (None, None)
        if low is not None and high is not None:
            low, high = max(low, 0.0), min(high, 1.0)
        curve.append(
            {
                "predicted": float(predicted[0] / count[0]),
                "observed": float(observed[0]),
                "low": low,
                "high": high,
                "rows": int(count[0]),
            }
        )
    return curve


def auc(labels: Array, scores: Array) -> float | None:
    """Return the area under the ROC curve; None if a class is absent."""
    one_unit = np.zeros(len(labels), np.int64)
    value = float(_auc(LabeledScores(labels, scores, one_unit, one_unit), np.ones((1, 1), np.uint8))[0])
    return None if np.isnan(value) else value


def auc_draws(rows: LabeledScores, draws: UnitDraws) -> Array:
    """Return the AUC on the data and on each bootstrap draw [1 + B], NaN where a class is absent."""
    return _auc(rows, draws.counts)


def _auc(rows: LabeledScores, counts: npt.NDArray[np.uint8]) -> Array:
    """Return P(score of a positive > score of a negative), ties ½, in each draw; rows are sorted once."""
    positive = rows.labels == 1
    order = np.argsort(rows.predictions[~positive])
    negatives, negative_units = rows.predictions[~positive][order], rows.units[~positive][order]
    below = np.searchsorted(negatives, rows.predictions[positive], "left")
    not_above = np.searchsorted(negatives, rows.predictions[positive], "right")
    up_to = np.zeros(len(negatives) + 1, np.int64)
    values = np.full(len(counts), np.nan)
    for draw, times in enumerate(counts):
        np.cumsum(times[negative_units], dtype=np.int64, out=up_to[1:])
        weight = times[rows.units[positive]].astype(np.int64)
        pairs = int(weight.sum()) * int(up_to[-1])
        if pairs:
            values[draw] = weight @ (up_to[below] + up_to[not_above]) / (2 * pairs)
    return values


def quantile_bins(predictions: Array, bins: int = CURVE_BINS) -> Ids:
    """Return the quantile bin of each row [rows], numbered from 0; equal predictions share a bin."""
    inner = np.quantile(predictions, np.linspace(0, 1, bins + 1)[1:-1])
    numbers: Ids = np.unique(np.searchsorted(inner, predictions), return_inverse=True)[1]
    return numbers


def _by_bin(values: Array, bins: Ids) -> Iterator[Array]:
    """Yield, per bin, the values of its rows and 0 elsewhere; one column at a time, which bounds the memory."""
    for number in range(int(bins.max()) + 1):
        yield np.where(bins == number, values, 0.0)


def _entropy(rate: Array) -> Array:
    """Return the cross-entropy in nats of predicting the base rate; NaN at rates 0 and 1."""
    return -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
