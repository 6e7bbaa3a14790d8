"""Metrics of several processes: prometheus_client's multiprocess mode on a folder of the service."""

from __future__ import annotations

import json
import logging
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import ProcessCollector, values
from prometheus_client.core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from ranking.artifacts.atomic_files import os_error_text
from ranking.errors import ConfigError
from ranking.temporary_folders import temporary_folder

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""Variable that prometheus_client reads once, on import. Processes started while it is set share their metrics."""

SHARED_MEMORY = Path("/dev/shm")
"""Default parent of the metrics folder. On a disk, write-back can delay requests."""

INITIAL_BYTES = 64 * 1024
"""Initial size of a file, enough for some 300 values."""
SERIES_BYTES = 16 * 1024
"""Room that a new series needs: a histogram of which only some buckets were stored would be wrong."""

UNREADABLE = (OSError, RuntimeError, ValueError, struct.error)
"""Errors of prometheus_client on a file that is damaged or was removed while it was read."""

log = logging.getLogger("ranker.service")


def shared_folder() -> Path | None:
    """Return the folder through which this process shares metrics, or None if it is the only process."""
    return Path(os.environ[FOLDER]) if FOLDER in os.environ else None


@contextmanager
def shared_metrics() -> Iterator[Path]:
    """Create a metrics folder for this process and those started in this context, and remove it at the end.

    The folder is in memory unless TMPDIR is set.

    Raises:
        ConfigError: the folder cannot be created.
    """
    in_memory = "TMPDIR" not in os.environ and os.access(SHARED_MEMORY, os.W_OK)
    parent = SHARED_MEMORY if in_memory else Path(os.environ.get("TMPDIR") or tempfile.gettempdir())
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(temporary_folder("metrics", parent))
        except OSError as error:
            fix = "set TMPDIR to a folder with room, or serve with 1 worker"
            raise ConfigError(
                f"{parent}: no folder for metrics can be created ({os_error_text(error)}): {fix}"
            ) from None
        os.environ[FOLDER] = str(folder)
        stack.callback(os.environ.pop, FOLDER)
        for name in ("ValueClass", "MmapedDict"):
            stack.callback(setattr, values, name, getattr(values, name))
        SharedValues(folder).install()
        yield folder


class AllocatedFile(MmapedDict):
    """prometheus_client's file of one process and kind of metric, with all its blocks allocated before they are used.

    prometheus_client extends files without allocating blocks. A write to a block that a full filesystem cannot provide
    ends the process with SIGBUS.

    Args:
        path: path of the file, which is created if it does not exist.

    Raises:
        OSError: the file cannot be created, or its filesystem has no room for it.
    """

    def __init__(self, path: str) -> None:
        if not Path(path).exists():  # else a terminated process had the same id, and this process continues its counts
            draft = Path(path).with_suffix(".draft")
            try:
                with draft.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, INITIAL_BYTES)
                draft.rename(path)  # readers never see an empty file
            except OSError:
                draft.unlink(missing_ok=True)
                raise
        super().__init__(path)  # type: ignore[no-untyped-call]
        self._series: set[tuple[str, ...]] = set()

    def _init_value(self, key: str) -> None:
        """Add a value; overrides the only method of prometheus_client that extends the file.

        Raises:
            OSError: the filesystem has no room.
        """
        metric, _, labels, _ = json.loads(key)
        labels.pop("le", None)
        series = (metric, *labels.values())
        self._allocate(4 + len(key.encode()) + 8 + 16 if series in self._series else SERIES_BYTES)
        self._series.add(series)
        super()._init_value(key)  # type: ignore[no-untyped-call]

    def _allocate(self, size: int) -> None:
        capacity = self._capacity
        while self._used + size > capacity:
            capacity *= 2
        if capacity > self._capacity:
            os.posix_fallocate(self._f.fileno(), 0, capacity)


class SharedValues:
    """Creates the values of this process's metrics in files, or in memory if the folder is full or was removed.

    Args:
        folder: folder that the processes share.

    Attributes:
        folder: as above.
        unshared: number of values in memory, which no process exposes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._create = folder, values.MultiProcessValue()  # type: ignore[no-untyped-call]
        self.unshared = 0

    def install(self) -> None:
        """Let this process's metrics create their values here from now on."""
        # prometheus_client has no parameter for its class of files
        setattr(values, "MmapedDict", AllocatedFile)  # noqa: B010
        values.ValueClass = self

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Create a value; takes the arguments that prometheus_client passes to its class of values."""
        try:
            return self._create(*args, **options)
        except (OSError, ValueError, IndexError) as error:  # no room for the file or for its mapping
            if not self.unshared:
                reason = os_error_text(error) if isinstance(error, OSError) else error
                log.warning(
                    "metrics cannot be stored in %s (%s): new ones are missing until a restart", self.folder, reason
                )
            self.unshared += 1
            return values.MutexValue(*args, **options)  # type: ignore[no-untyped-call]


class SharedCollector(MultiProcessCollector):
    """Collects the values of all processes.

    Args:
        folder: folder that the processes share. It may have been removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        """Return one family per metric, without the values of files that cannot be read."""
        files = list(map(str, self._folder.glob("*.db")))
        try:
            metrics: Iterable[Metric] = self.merge(files)  # type: ignore[no-untyped-call]
        except UNREADABLE:
            metrics = self.merge(filter(_is_readable, files))  # type: ignore[no-untyped-call]
        return metrics


def _is_readable(file: str) -> bool:
    try:
        return bool(list(MmapedDict.read_all_values_from_file(file)))  # type: ignore[no-untyped-call]
    except UNREADABLE:
        return False


def remove_metrics(folder: Path, pid: int | None) -> None:
    """Remove the gauges of a process that has ended, and its counters and histograms if they have counted nothing."""
    for path in folder.glob(f"*_{pid}.db"):
        with suppress(*UNREADABLE):
            values = MmapedDict.read_all_values_from_file(path)  # type: ignore[no-untyped-call]
            if path.name.startswith("gauge_live") or not any(value for _, value, _, _ in values):
                path.unlink()


class WorkerProcessCollector(Collector):
    """Standard process metrics (CPU, memory, files) of every worker, with the label ``pid``.

    Args:
        folder: metrics folder shared by the workers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Yield one family per metric."""
        alive = {int(path.stem.rpartition("_")[2]) for path in self._folder.glob("gauge_live*.db")}
        families: dict[str, Metric] = {}
        for pid in sorted({*alive, os.getpid()}):
            for metric in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
                for sample in metric.samples:
                    family.add_sample(sample.name, {"pid": str(pid)}, sample.value)
        yield from families.values()
