"""Sums of a bundle by root, with which values start that the store does not have."""

from __future__ import annotations

import numpy as np

from pipelines.feature_store.counter_values import with_roots
from ranking.counters.combine import Records
from ranking.counters.features import CounterFeatures
from ranking.counters.state import StateClock
from ranking.counters.stored_sums import Root
from ranking.encoding.vocabulary import IdArray
from ranking.schema import Counter


class BundleSums:
    """Sums of the counters of a version.

    Args:
        counter_features: state of the version.
    """

    def __init__(self, counter_features: CounterFeatures) -> None:
        self._counter_features = counter_features
        self._sorted: dict[str, tuple[IdArray, IdArray]] = {}

    @property
    def clock(self) -> StateClock | None:
        """Time of the sums; None without counters."""
        return self._counter_features.clock

    def find(self, counter: Counter, root: Root, roots: IdArray) -> Records:
        """Return the records of some roots, see ``SumsByName``."""
        rows = self._counter_features.counters[counter.name].rows
        if counter.name not in self._sorted:
            of_row = rows["key" if root == "key" else "root"]
            order = np.argsort(of_row, kind="stable")
            self._sorted[counter.name] = of_row[order], order
        sorted_roots, order = self._sorted[counter.name]
        starts, stops = (np.searchsorted(sorted_roots, roots, side) for side in ("left", "right"))
        positions = [order[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        return with_roots(root, rows.take(np.concatenate([np.empty(0, np.int64), *positions])))
