"""Histogram that counts a batch of values in one pass."""

from __future__ import annotations

import secrets
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Block = npt.NDArray[np.void]
"""Counts of a model's tasks: a row per task, with the fields model, task and totals [buckets + sum of values]."""

MAX_SAMPLED_ROWS = 32
"""Maximum number of rows counted per call of ``observe``."""


class BulkHistogram(Collector):
    """Prometheus histogram with the labels ``model`` and ``task`` that counts the scores of a batch in one pass.

    With prometheus_client's own histogram, one observation per value would cost more than scoring.

    A single process counts in memory. Several processes count in memory-mapped files of a shared folder: each process
    writes only its own files, and reads the files of all processes. The counts of a terminated process remain.

    Args:
        name: name of the metric.
        documentation: HELP text of the metric.
        edges: upper bounds of the buckets, ascending and non-negative. A bucket without an upper bound is added.
        folder: folder shared by several processes, or None for a single process.

    Attributes:
        unshared: number of series without room in the shared folder, which no process exposes.
    """

    def __init__(self, name: str, documentation: str, edges: Sequence[float], folder: Path | None) -> None:
        self._name, self._documentation, self._folder = name, documentation, folder
        self._edges = np.array(edges, np.float32)
        self._bounds = [*map(floatToGoString, edges), "+Inf"]
        self._lock = threading.Lock()  # guards the blocks: batches are counted and metrics collected on two threads
        self._blocks: list[Block] = []
        self._latest: dict[str, Block] = {}  # model → its last block
        self.unshared = 0
        self._token = secrets.token_hex(8)  # a terminated process may have had the id of this one
        self._rows: dict[str, dict[str, int]] = {}  # model → task → row in the model's last block

    def observe(self, model: str, tasks: Sequence[str], values: npt.NDArray[np.float32]) -> None:
        """Count values, or at most ``MAX_SAMPLED_ROWS`` equally spaced rows of them.

        Args:
            model: label of the values.
            tasks: labels of the columns.
            values: [rows, tasks].
        """
        sample = values[:: max(1, -(-len(values) // MAX_SAMPLED_ROWS))]
        with self._lock:
            rows = self._rows.get(model, {})
            if not rows.keys() >= set(tasks):
                rows = self._add_block(model, tasks)
            totals, buckets = self._latest[model]["totals"], len(self._bounds)
            offsets = np.array([rows[task] * buckets for task in tasks])
            cells = (self._edges.searchsorted(sample) + offsets).ravel()
            totals[:, :-1] += np.bincount(cells, minlength=len(totals) * buckets).reshape(-1, buckets)
            totals[offsets // buckets, -1] += sample.sum(0, np.float64)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric, summed over all processes."""
        sums: dict[tuple[str, str], npt.NDArray[np.float64]] = defaultdict(lambda: np.zeros(len(self._bounds) + 1))
        for array in self._blocks.copy() if self._folder is None else self._shared_blocks():
            for model, task, totals in array:
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
        block = np.zeros(len(names), fields)
        block["model"], block["task"] = model, names
        if self._folder is not None:
            block = self._share(block, self._folder / f"{self._name}-{self._token}-{len(self._blocks)}.npy")
        self._blocks.append(block)
        self._latest[model] = block
        self._rows[model] = {task: row for row, task in enumerate(names)}
        return self._rows[model]

    def _share(self, block: Block, path: Path) -> Block:
        """Move a block to a file, and return it; without room for the file it stays in memory."""
        draft = path.with_suffix(".draft")
        try:
            np.save(content := BytesIO(), block)
            draft.write_bytes(content.getvalue())  # a write to a hole of a mapped file could end the process (SIGBUS)
            array = np.load(draft, mmap_mode="r+")
            draft.rename(path)  # readers see complete files only
        except OSError:
            self.unshared += len(block)
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            return block
        return np.asarray(array)  # arithmetic on np.memmap itself is much slower

    def _shared_blocks(self) -> Iterator[Block]:
        for path in sorted(self._folder.glob(f"{self._name}-*.npy")) if self._folder else ():
            with suppress(OSError, ValueError, EOFError):  # removed or damaged; a mapping could end the process
                yield np.load(path)
