"""Bootstrap intervals: whole units are drawn with replacement, because the rows of a unit are not independent."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ranking.metrics.labeled_scores import Array, Ids, LabeledScores, count_distinct, number_consecutively
from ranking.metrics.units import SamplingUnits

BLOCK = 16_384
"""Groups per block in which counts are converted to floats."""

MAX_GROUPS = 262_144
"""Maximum number of groups that are drawn. More units are divided among them at random, which bounds the memory of the
draws and leaves the expected variance unchanged (random groups, Wolter 2007, section 2.4)."""

FEW_UNITS = 30
"""Number of units below which an interval is widened, and reported as based on few units."""

MIN_UNITS = 5
"""Number of units with a label (binary task: of the rarer class) below which a measure has no interval.

With 2 units, the interval of the difference of two equally good regressions excludes 0 in 9 % of the logs for RMSE and
in half of them for R²; with 3 or 4 units in about 10 % for R². From 5 units on it is 5 to 7 %.
"""

STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
)  # fmt: skip
"""97.5 % quantile of Student's t distribution with 1 to ``FEW_UNITS`` − 2 degrees of freedom."""
NORMAL = 1.960
"""97.5 % quantile of the normal distribution."""


class UnitDraws:
    """Counts of each sampling unit in each draw of the cluster bootstrap (Field and Welsh 2007, section 2.3).

    All tasks, slices and models use the same draws, so that their differences are paired. Draw 0 is the data itself,
    with every unit once. One formula therefore computes a measure on the data (index 0) and on the draws (from index
    1).

    Args:
        units: sampling unit of each row.
        draws: number of draws B.
        seed: random seed.

    Attributes:
        units: sampling unit of each row.
        codes: number of each row's group, which is its unit unless there are more than ``MAX_GROUPS`` [rows].
        counts: number of times that each group was drawn [1 + B, groups] uint8.
    """

    def __init__(self, units: SamplingUnits, draws: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.units, self.codes, groups = units, units.codes, units.count
        if groups > MAX_GROUPS:
            self.codes, groups = (random.permutation(groups) % MAX_GROUPS)[units.codes], MAX_GROUPS
        self.counts: npt.NDArray[np.uint8] = np.ones((1 + draws, groups), np.uint8)
        for draw in self.counts[1:]:
            draw[:] = np.bincount(random.integers(groups, size=groups), minlength=groups)

    def to_json(self) -> dict[str, Any]:
        """Return the entry ``intervals`` of an evaluation or comparison."""
        units = self.units
        unknown = int(np.count_nonzero(units.users == 0))
        return {
            "unit": units.kind,
            "units": units.count,
            "rows_without_user": unknown,
            "placeholder_user": units.has_placeholder,
            "draws": len(self.counts) - 1,
        }

    def sums(self, codes: Ids, columns: Iterable[npt.NDArray[np.generic]]) -> Array:
        """Return the sum of each column in each draw [columns, 1 + B]: sums by group times the counts of the groups.

        Args:
            codes: group of each row [rows]; a subset of the rows is allowed.
            columns: values [rows] of each column.
        """
        group, present = number_consecutively(codes, self.counts.shape[1])
        by_group = np.stack([np.bincount(group, column, len(present)) for column in columns], axis=1)
        total = np.zeros((len(self.counts), by_group.shape[1]))
        for start in range(0, len(present), BLOCK):
            block = slice(start, start + BLOCK)
            total += self.counts[:, present[block]].astype(np.float64) @ by_group[block]
        return total.T

    def without_draws_if_single(self, values: Array, codes: Ids) -> Array:
        """Return values [1 + B] of a measure, with NaN for the draws if fewer than two groups contribute to it.

        Draws of a single group have no variance.

        Args:
            values: the measure on the data and on each draw [1 + B].
            codes: groups of the rows that contribute [any number].
        """
        if count_distinct(codes) >= 2:
            return values
        return np.append(values[:1], np.full(len(values) - 1, np.nan))


def interval_units(rows: LabeledScores, *, binary: bool) -> int:
    """Return the number of independent units that the interval of a measure rests on.

    For a binary label these are the units with a row of the rarer class, which the variance of the AUC and of the loss
    depends on (Hanley and McNeil 1982, "The meaning and use of the area under a ROC curve"): many negatives do not make
    up for few positives. For a number these are the units with a label. With fewer than ``MIN_UNITS``, the draws of a
    binary task measure the other class only, and those of a regression too few different samples.

    Args:
        rows: the rows of a measure.
        binary: whether the labels are 0 and 1.

    Returns:
        The number of units; 0 if they are too few for an interval.
    """
    samples = [rows.units[rows.labels == label] for label in (0, 1)] if binary else [rows.units]
    units = min(count_distinct(sample) for sample in samples)
    return units if units >= MIN_UNITS else 0


def interval(values: Array, units: int, *, reflected: bool = False) -> tuple[float, float] | None:
    """Return the 95 % interval of a measure, which contains its value.

    It is the percentile interval (Efron and Tibshirani 1993, section 13.3). With n < ``FEW_UNITS`` units, percentiles
    are too narrow: the distances from the value are multiplied by √(n / (n − 1)) · t(n − 1) / z, so that the interval
    of a mean equals Student's (Hesterberg 2015, "What teachers should know about the bootstrap": the narrowness bias).
    A value outside of its interval becomes an end of it, which can only raise the coverage.

    Args:
        values: the measure on the data and on each draw [1 + B], NaN where undefined.
        units: number of units that the measure rests on, see ``interval_units``.
        reflected: reflect the percentiles at the value (basic interval, Davison and Hinkley 1997, section 5.2), for a
            measure that noise can only increase: its draws exceed the value as much as the value exceeds the truth.

    Returns:
        Lower and upper bound; None without draws, with fewer than two units, or if the measure is undefined on the data
        or on half of the draws.
    """
    drawn = values[1:][~np.isnan(values[1:])]
    if units < 2 or np.isnan(values[0]) or len(drawn) < max((len(values) - 1) / 2, 1):
        return None
    low, high = (float(end) for end in np.quantile(drawn, [0.025, 0.975], method="weibull"))
    value = float(values[0])
    if reflected:
        low, high = 2 * value - high, 2 * value - low
    if units < FEW_UNITS:
        factor = math.sqrt(units / (units - 1)) * STUDENT_T[units - 2] / NORMAL
        low, high = value - factor * (value - low), value + factor * (high - value)
    return min(low, value), max(high, value)
