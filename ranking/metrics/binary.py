"""Measures of a binary task: ranking quality and calibration of its probabilities."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ranking.metrics.bootstrap import UnitDraws, interval
from ranking.metrics.grouped import Groups, in_blocks, request_ndcg, user_auc, user_day_auc
from ranking.metrics.labeled_scores import Array, Ids, LabeledScores, count_distinct, number_consecutively

BINARY_MEASURES = (
    "auc",
    "gauc",
    "gauc_by_user_day",
    "logloss",
    "normalised_entropy",
    "calibration",
    "calibration_error",
    "ndcg",
)
SUM_MEASURES = {"logloss", "normalised_entropy", "calibration", "calibration_error"}
CURVE_BINS = 10
CLIP = 1e-7
"""Distance from 0 and 1 to which the log loss clips probabilities."""


def binary_measures(
    rows: LabeledScores, draws: UnitDraws, ndcg_at: int = 10, only: Collection[str] = BINARY_MEASURES
) -> dict[str, Array]:
    """Compute each measure on the data and on each bootstrap draw [1 + B], NaN where undefined.

    Args:
        rows: at least one row.
        draws: bootstrap draws of the sampling units.
        ndcg_at: cutoff k of NDCG@k.
        only: names of the measures to compute.
    """
    by_user = draws.units.kind == "user"
    measures = {name: np.full(len(draws.counts), np.nan) for name in BINARY_MEASURES if name in only}
    if "auc" in only:
        measures["auc"] = auc_draws(rows, draws)
    # Mean AUC of the users with both classes, weighted by their rows: Zhu et al. 2017, section 3.2; then of the rows of
    # one user on one day.
    if "gauc" in only and by_user:
        measures["gauc"] = _mean(in_blocks(user_auc, rows, rows.users), draws)
    if "gauc_by_user_day" in only and by_user and rows.days is not None:
        measures["gauc_by_user_day"] = _mean(in_blocks(user_day_auc, rows, rows.users), draws)
    if "ndcg" in only and rows.requests is not None:
        measures["ndcg"] = _mean(in_blocks(partial(request_ndcg, at=ndcg_at), rows, rows.users + rows.requests), draws)
    measures |= {name: values for name, values in _sum_measures(rows, draws, only).items() if name in only}
    return {name: np.where(np.isfinite(values), values, np.nan) for name, values in measures.items()}


def _sum_measures(rows: LabeledScores, draws: UnitDraws, only: Collection[str]) -> dict[str, Array]:
    """Compute the measures that are ratios of sums over the rows; the calibration error only if it is requested."""
    if not SUM_MEASURES.intersection(only):
        return {}
    with_bins = "calibration_error" in only
    count, positives, predicted, loss, *gaps = draws.sums(rows.units, _columns(rows, with_bins=with_bins))
    with np.errstate(divide="ignore", invalid="ignore"):
        measures = {
            # Mean cross-entropy in nats.
            "logloss": loss / count,
            # Log loss divided by that of the base rate: He et al. 2014, equation 1
            "normalised_entropy": loss / count / _entropy(positives / count),
            # Mean prediction divided by the base rate: He et al. 2014, section 3
            "calibration": predicted / positives,
        }
        if with_bins:
            # Mean |observed − predicted| of the curve's bins, weighted by rows: Naeini et al. 2015; bins: Nixon et al.
            # 2019
            measures["calibration_error"] = np.abs(gaps).sum(0) / count
    return measures


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
        units = count_distinct(rows.units[bins == number])
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
    negatives, negative_units = _sorted(rows, rows.labels != 1)
    positives, positive_units = _sorted(rows, rows.labels == 1)
    below = np.searchsorted(negatives, positives, "left")
    not_above = np.searchsorted(negatives, positives, "right")
    del negatives, positives  # arrays of all rows
    up_to = np.zeros(len(negative_units) + 1, np.int64)
    values = np.full(len(counts), np.nan)
    for draw, times in enumerate(counts):
        np.cumsum(times[negative_units], dtype=np.int64, out=up_to[1:])
        weight = times[positive_units].astype(np.int64)
        pairs = int(weight.sum()) * int(up_to[-1])
        if pairs:
            values[draw] = weight @ (up_to[below] + up_to[not_above]) / (2 * pairs)
    return values


def _sorted(rows: LabeledScores, chosen: npt.NDArray[np.bool_]) -> tuple[Array, Ids]:
    """Return the predictions and units of some rows by increasing prediction."""
    predictions = rows.predictions[chosen]
    order = np.argsort(predictions)
    return predictions[order], rows.units[chosen][order]


def quantile_bins(predictions: Array, bins: int = CURVE_BINS) -> Ids:
    """Return the quantile bin of each row [rows], numbered from 0; equal predictions share a bin."""
    inner = np.quantile(predictions, np.linspace(0, 1, bins + 1)[1:-1])
    numbers = np.searchsorted(inner, predictions)
    numbers, _ = number_consecutively(numbers, bins)
    return numbers


def _mean(groups: Groups, draws: UnitDraws) -> Array:
    """Return the weighted mean over the groups, on the data and on each draw [1 + B], NaN where there are none."""
    sums, weights = draws.sums(groups.units, [groups.values * groups.weights, groups.weights])
    with np.errstate(invalid="ignore"):
        return draws.without_draws_if_single(sums / weights, groups.units)


def _columns(rows: LabeledScores, *, with_bins: bool) -> Iterator[Array]:
    """Yield the columns whose sums the measures need, one at a time, which bounds the memory.

    These are 1, label, prediction, loss, and with bins label − prediction for each bin of the calibration error.
    """
    yield np.ones(len(rows))
    yield rows.labels
    yield rows.predictions
    p = np.clip(rows.predictions, CLIP, 1 - CLIP)
    yield -np.where(rows.labels == 1, np.log(p), np.log1p(-p))
    del p
    if with_bins:
        yield from _by_bin(rows.labels - rows.predictions, quantile_bins(rows.predictions))


def _by_bin(values: Array, bins: Ids) -> Iterator[Array]:
    """Yield, per bin, the values of its rows and 0 elsewhere."""
    for number in range(int(bins.max()) + 1):
        yield np.where(bins == number, values, 0.0)


def _entropy(rate: Array) -> Array:
    """Return the cross-entropy in nats of predicting the base rate; NaN at rates 0 and 1."""
    return -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
