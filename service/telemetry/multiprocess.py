"""Metrics shared by several processes: prometheus_client's files in a folder that exists while the service runs."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.multiprocess import mark_process_dead
from prometheus_client.registry import Collector

from ranking.temporary_folders import FolderLock, new_path

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Variable that prometheus_client reads once, on import. Processes started while it is set share their metrics."""

SHARED_MEMORY = Path("/dev/shm")
"""Default parent of the metrics folder. On a disk, write-back can delay requests."""

log = logging.getLogger("ranker.service")


def shared_folder() -> Path | None:
    """Return the folder through which this process shares metrics, or None if it is the only process."""
    return Path(os.environ[FOLDER]) if FOLDER in os.environ else None


@contextmanager
def shared_metrics() -> Iterator[Path]:
    """Create a metrics folder for the processes started in this context, and remove it at the end.

    The folder is in memory unless TMPDIR is set. If it cannot be created, the processes try again whenever their
    metrics are collected.
    """
    in_memory = "TMPDIR" not in os.environ and os.access(SHARED_MEMORY, os.W_OK)
    parent = SHARED_MEMORY if in_memory else Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
    folder = new_path("metrics", parent)
    with ExitStack() as stack:
        try:
            stack.callback(FolderLock(folder).close)
        except OSError as error:
            log.warning("the metrics folder %s cannot be created (%s)", folder, error.strerror)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        os.environ[FOLDER] = str(folder)
        stack.callback(os.environ.pop, FOLDER)
        yield folder


def prune_dead_workers(folder: Path, alive: Collection[int | None]) -> None:
    """Remove the gauges of terminated processes. Their counters and histograms remain."""
    for pid in _processes(folder) - set(alive):
        with suppress(OSError):  # such as a folder that was removed
            mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]


def _processes(folder: Path) -> set[int]:
    """Return the ids of processes that have gauges."""
    return {int(path.stem.rpartition("_")[2]) for path in folder.glob("gauge_live*.db")}


class WorkerProcessCollector(Collector):
    """Standard process metrics (CPU, memory, files) of every worker, with the label ``pid``.

    Args:
        folder: Metrics folder shared by the workers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Yield one family per metric."""
        families: dict[str, Metric] = {}
        for pid in sorted({*_processes(self._folder), os.getpid()}):
            for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    family.add_sample(sample.name, {"pid": str(pid)}, sample.value)
        yield from families.values()
