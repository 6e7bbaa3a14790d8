"""Means with standard errors, and paired differences with 95 % intervals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from scipy.stats import t


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; the error of a single value is 0."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return statistics.mean(values), error


def paired_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Return the mean of ours − theirs of the same seeds, and the half-width of its 95 % interval (Student's t).

    Raises:
        ValueError: the lengths differ, or there are fewer than two pairs.
    """
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(differences) < 2:
        raise ValueError("an interval needs at least two seeds")
    mean, error = mean_and_error(differences)
    return mean, float(t.ppf(0.975, len(differences) - 1)) * error


def plus_minus(mean: float, half_width: float, digits: int) -> str:
    """Format a value with its error or interval, such as "3.80 ± 0.05"."""
    return f"{mean:.{digits}f} ± {half_width:.{digits}f}"
