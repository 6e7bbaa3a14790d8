"""Choice of the bounds of the splits, so that each split has rows and positives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt

SHARES = (0.1, 0.15, 0.2, 0.25, 0.3)
"""Shares of the validation and the test split, in the order in which they are tried."""
TOLERANCE = 2.0
"""Whole days are used if the shares of the splits differ from the wanted ones by at most this factor."""
MICROSECONDS_PER_SECOND = 1_000_000
MICROSECONDS_PER_DAY = 86_400 * MICROSECONDS_PER_SECOND

Times = npt.NDArray[np.int64]
Labels = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Splits:
    """Bounds of the splits.

    Attributes:
        validation_from: start of the validation split.
        test_from: start of the test split.
        shares: share of the training, validation and test split in the sample.
        gaps: whether there are days without rows in the sample.
    """

    validation_from: datetime
    test_from: datetime
    shares: tuple[float, float, float]
    gaps: bool

    @property
    def whole_days(self) -> bool:
        """Whether both bounds are midnights."""
        return all(bound.time() == bound.min.time() for bound in (self.validation_from, self.test_from))


def choose_splits(times: Times, labels: Sequence[Labels], *, dates: bool) -> Splits | None:
    """Return bounds such that each split has rows, and if possible both values of every binary label.

    Args:
        times: time of each usable row in microseconds [rows].
        labels: binary labels of each task [rows]; NaN where unknown.
        dates: whether the time column holds dates, so that bounds are midnights.

    Returns:
        The bounds; None if the times do not allow three splits.
    """
    best: tuple[int, int, int] | None = None
    for share in SHARES:
        for first, second in _bounds(times, share, dates):
            splits = np.digitize(times, [first, second])
            if min(np.bincount(splits, minlength=3)) < 1 or (splits == 0).sum() < 2:
                continue
            complete = sum(
                all(len(np.unique(label[(splits == split) & ~np.isnan(label)])) > 1 for split in range(3))
                for label in labels
            )
            if best is None or complete > best[0]:
                best = complete, first, second
            break
        if best is not None and best[0] == len(labels):
            break
    if best is None:
        return None
    _, first, second = best
    counts = np.bincount(np.digitize(times, [first, second]), minlength=3) / len(times)
    days = np.unique(times // MICROSECONDS_PER_DAY)
    gaps = bool(len(days) and days[-1] - days[0] + 1 > len(days))
    train, validation, test = (float(share) for share in counts)
    return Splits(_moment(first), _moment(second), (train, validation, test), gaps)


def _bounds(times: Times, share: float, dates: bool) -> Iterator[tuple[int, int]]:
    """Yield bounds for splits of about ``share``: midnights if they fit, then times."""
    validation, test = (int(np.quantile(times, 1 - part, method="higher")) for part in (2 * share, share))
    midnights = np.unique(times // MICROSECONDS_PER_DAY)[1:] * MICROSECONDS_PER_DAY
    if len(midnights) >= 2:
        shares = 1 - np.searchsorted(np.sort(times), midnights) / len(times)
        second = max(1, int(np.abs(shares - share).argmin()))
        first = int(np.abs(shares[:second] - 2 * share).argmin())
        low, high = share / TOLERANCE, share * TOLERANCE
        if dates or (low <= shares[second] <= high and low <= shares[first] - shares[second] <= high):
            yield int(midnights[first]), int(midnights[second])
    if not dates:
        step = MICROSECONDS_PER_SECOND
        first, second = validation // step * step, test // step * step
        if first < second:
            yield first, second
        ordered = np.unique(times // step * step)
        if len(ordered) >= 3:
            second = int(np.clip(np.searchsorted(ordered, second), 2, len(ordered) - 1))
            first = int(np.clip(np.searchsorted(ordered, first), 1, second - 1))
            yield int(ordered[first]), int(ordered[second])


def _moment(microseconds: int) -> datetime:
    moment: datetime = np.datetime64(int(microseconds), "us").astype(datetime)
    return moment
