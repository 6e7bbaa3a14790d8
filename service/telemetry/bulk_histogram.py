"""Histogram that counts a batch of values in one pass."""

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

MAX_SAMPLED_ROWS = 32
"""Maximum number of rows counted per call of ``observe``."""


class BulkHistogram(Collector):
    """Prometheus histogram with the labels ``model`` and ``task`` that counts the scores of a batch in one pass.

    With prometheus_client's own histogram, one observation per value would cost more than scoring.

    A single process counts in memory. Several processes count in memory-mapped files of a shared folder: each process
    writes only its own files, and reads the files of all processes. The counts of a terminated process remain.

    Args:
        name: Name of the metric.
        documentation: HELP text of the metric.
        edges: Upper bounds of the buckets, ascending and non-negative. A bucket without an upper bound is added.
        folder: Folder shared by several processes, or None for a single process.
    """

    def __init__(self, name: str, documentation: str, edges: Sequence[float], folder: Path | None) -> None:
        self._name, self._documentation, self._folder = name, documentation, folder
        self._edges = np.array(edges, np.float32)
        self._bounds = [*map(floatToGoString, edges), "+Inf"]
        self._blocks: list[npt.NDArray[np.void]] = []
        self._rows: dict[str, dict[str, int]] = {}  # model → task → row in the model's last block
        self._totals: dict[str, npt.NDArray[np.float64]] = {}  # model → that block's [tasks, buckets + sum of values]

    def observe(self, model: str, tasks: Sequence[str], values: npt.NDArray[np.float32]) -> None:
        """Count values, or at most ``MAX_SAMPLED_ROWS`` equally spaced rows of them.

        Args:
            model: Label of the values.
            tasks: Labels of the columns.
            values: [rows, tasks].
        """
        rows = self._rows.get(model, {})
        if not rows.keys() >= set(tasks):
            rows = self._add_block(model, tasks)
        sample = values[:: max(1, -(-len(values) // MAX_SAMPLED_ROWS))]
        totals, buckets = self._totals[model], len(self._bounds)
        offsets = np.array([rows[task] * buckets for task in tasks])
        cells = (self._edges.searchsorted(sample) + offsets).ravel()
        totals[:, :-1] += np.bincount(cells, minlength=len(totals) * buckets).reshape(-1, buckets)
        totals[offsets // buckets, -1] += sample.sum(0, np.float64)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric, summed over all processes."""
        sums: dict[tuple[str, str], npt.NDArray[np.float64]] = defaultdict(lambda: np.zeros(len(self._bounds) + 1))
        for block in self._blocks if self._folder is None else self._shared_blocks(self._folder):
            for model, task, totals in block:
                sums[str(model), str(task)] += totals
        family = HistogramMetricFamily(self._name, self._documentation, labels=["model", "task"])
        for labels, totals in sorted(sums.items()):
            counts = totals[:-1].cumsum().tolist()
            family.add_metric(labels, list(zip(self._bounds, counts, strict=True)), float(totals[-1]))
        yield family

    def _add_block(self, model: str, tasks: Sequence[str]) -> dict[str, int]:
        """Add a block for a model's known tasks and these. The model's previous block keeps its counts."""
        names = sorted({*self._rows.get(model, {}), *tasks})
        labels = {"model": [model], "task": names}
        texts = [(label, f"U{max(map(len, values))}") for label, values in labels.items()]
        fields = np.dtype([*texts, ("totals", np.float64, (len(self._bounds) + 1,))], align=True)
        block = self._new_block(fields, len(names))
        self._blocks.append(block)
        self._rows[model] = {task: row for row, task in enumerate(names)}
        self._totals[model] = block["totals"]
        block["model"], block["task"] = model, names
        return self._rows[model]

    def _new_block(self, fields: np.dtype[Any], rows: int) -> npt.NDArray[np.void]:
        if self._folder is None:
            return np.zeros(rows, fields)
        path = self._folder / f"{self._name}-{os.getpid()}-{len(self._blocks)}.npy"
        draft = path.with_suffix(".draft")
        block = np.lib.format.open_memmap(draft, "w+", fields, (rows,))
        draft.rename(path)  # readers see complete files only
        return np.asarray(block)  # arithmetic on np.memmap itself is much slower

    def _shared_blocks(self, folder: Path) -> Iterator[npt.NDArray[np.void]]:
        return (np.load(path, mmap_mode="r") for path in sorted(folder.glob(f"{self._name}-*.npy")))
