"""Metrics of several processes: prometheus_client's files, in a folder that lives as long as the service."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.multiprocess import mark_process_dead
from prometheus_client.registry import Collector

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Variable that prometheus_client reads once, when it is imported: processes started while it is set share metrics."""

MEMORY = Path("/dev/shm")
"""On a disk, writing back what was counted would now and then hold a request up, and a full one end the process."""


def shared_folder() -> Path | None:
    """Where this process shares its metrics with others; None if it is alone."""
    return Path(os.environ[FOLDER]) if FOLDER in os.environ else None


@contextmanager
def shared_metrics() -> Iterator[Path]:
    """A new folder for the processes that are started meanwhile, in memory unless TMPDIR is set; removed at the end."""
    place = MEMORY if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ranker-metrics-", dir=place, ignore_cleanup_errors=True) as folder:
        os.environ[FOLDER] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ[FOLDER]


def prune_dead_workers(folder: Path, alive: Collection[int | None]) -> None:
    """Takes away what dead processes said of their present state; what they counted stays counted."""
    for pid in _processes(folder) - set(alive):
        mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]


def _processes(folder: Path) -> set[int]:
    """Those with a present state."""
    return {int(path.stem.rpartition("_")[2]) for path in folder.glob("gauge_live*.db")}


class Processes(Collector):
    """The standard metrics of a process (CPU, memory, files), of each one by ``pid``, whichever is asked.

    Args:
        folder: that they share.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """A family for each of the metrics."""
        families: dict[str, Metric] = {}
        for pid in sorted(_processes(self._folder)):
            for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    family.add_sample(sample.name, {"pid": str(pid)}, sample.value)
        yield from families.values()
