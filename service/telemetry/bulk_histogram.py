"""Histograms that take many values at a time, where one observation a value would cost more than the scoring."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

SAMPLE = 32
"""Rows of one observation that are counted; more would say hardly more about a distribution."""


class BulkHistogram(Collector):
    """A histogram by model and task, into which the scores of a batch go in one pass.

    Alone, a process counts in memory. Several processes count in files of a folder, a process never in another's, and
    each reads the sum of all. What a process that died has counted stays.

    Args:
        name: of the metric.
        documentation: of the metric.
        edges: upper ends of the buckets, rising, the first at least 0; one more goes to infinity.
        folder: of several processes.
    """

    def __init__(self, name: str, documentation: str, edges: Sequence[float], folder: Path | None) -> None:
        self._name, self._documentation, self._folder = name, documentation, folder
        self._edges = np.array(edges, np.float32)
        self._ends = [*map(floatToGoString, edges), "+Inf"]
        self._blocks: list[npt.NDArray[np.void]] = []
        self._rows: dict[str, dict[str, int]] = {}  # model → task → row in the model's last block
        self._totals: dict[str, npt.NDArray[np.float64]] = {}  # of that block [tasks, buckets + sum of the values]

    def observe(self, model: str, tasks: Sequence[str], values: npt.NDArray[np.float32]) -> None:
        """Counts values [rows, tasks]: of more than ``SAMPLE`` rows so many at most, at equal distances."""
        rows = self._rows.get(model, {})
        if not rows.keys() >= set(tasks):
            rows = self._grow(model, tasks)
        some = values[:: max(1, -(-len(values) // SAMPLE))]
        totals, buckets = self._totals[model], len(self._ends)
        first = np.array([rows[task] * buckets for task in tasks])
        places = (self._edges.searchsorted(some) + first).ravel()
        totals[:, :-1] += np.bincount(places, minlength=len(totals) * buckets).reshape(-1, buckets)
        totals[first // buckets, -1] += some.sum(0, np.float64)

    def collect(self) -> Iterator[Metric]:
        """The metric, summed over all processes."""
        sums: dict[tuple[str, str], npt.NDArray[np.float64]] = defaultdict(lambda: np.zeros(len(self._ends) + 1))
        for block in self._blocks if self._folder is None else self._written(self._folder):
            for model, task, totals in block:
                sums[str(model), str(task)] += totals
        family = HistogramMetricFamily(self._name, self._documentation, labels=["model", "task"])
        for labels, totals in sorted(sums.items()):
            counts = totals[:-1].cumsum().tolist()
            family.add_metric(labels, list(zip(self._ends, counts, strict=True)), float(totals[-1]))
        yield family

    def _grow(self, model: str, tasks: Sequence[str]) -> dict[str, int]:
        """A new block for a model, of its tasks so far and these; what the one before has counted stays in that."""
        names = sorted({*self._rows.get(model, {}), *tasks})
        widths = [(label, f"U{max(map(len, of))}") for label, of in (("model", [model]), ("task", names))]
        fields = np.dtype([*widths, ("totals", np.float64, (len(self._ends) + 1,))], align=True)
        block = self._block(fields, len(names))
        self._blocks.append(block)
        self._rows[model] = {task: row for row, task in enumerate(names)}
        self._totals[model] = block["totals"]
        block["model"], block["task"] = model, names
        return self._rows[model]

    def _block(self, fields: np.dtype[Any], rows: int) -> npt.NDArray[np.void]:
        if self._folder is None:
            return np.zeros(rows, fields)
        path = self._folder / f"{self._name}-{os.getpid()}-{len(self._blocks)}.npy"
        draft = path.with_suffix(".draft")
        block = np.lib.format.open_memmap(draft, "w+", fields, (rows,))
        draft.rename(path)  # whoever reads it finds a whole file
        return np.asarray(block)  # a memmap's own arithmetic is much slower

    def _written(self, folder: Path) -> Iterator[npt.NDArray[np.void]]:
        return (np.load(path, mmap_mode="r") for path in sorted(folder.glob(f"{self._name}-*.npy")))
