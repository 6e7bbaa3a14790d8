"""Metrics of several processes: prometheus_client's multiprocess mode on a folder of the service."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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

log = logging.getLogger("ranker.service")


def shared_folder() -> Path | None:
    """Return the folder through which this process shares metrics, or None if it is the only process."""
    return Path(os.environ[FOLDER]) if FOLDER in os.environ else None


@contextmanager
def shared_metrics() -> Iterator[Path]:
    """Create a metrics folder for this process and those started in this context, and remove it at the end.

    The folder is in memory unless TMPDIR is set.

    Raises:
        ConfigError: The folder cannot be created.
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
        stack.callback(setattr, values, "ValueClass", values.ValueClass)
        SharedValues(folder).install()
        yield folder


class AllocatedFile(MmapedDict):
    """prometheus_client's file of one process and kind of metric, with all its blocks allocated before they are used.

    prometheus_client extends files without allocating blocks. A write to a block that a full filesystem cannot provide
    ends the process with SIGBUS.

    Args:
        path: Path of the file, which is created if it does not exist.

    Raises:
        OSError: The file cannot be created, or its filesystem has no room for it.
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

    def _init_value(self, key: str) -> None:
        """Add a value; overrides the only method of prometheus_client that extends the file.

        Raises:
            OSError: The filesystem has no room.
        """
        padded_bytes = len(key.encode()) + 8
        entry_bytes, capacity = 4 + padded_bytes + 16, self._capacity
        while self._used + entry_bytes > capacity:
            capacity *= 2
        if capacity > self._capacity:
            os.posix_fallocate(self._f.fileno(), 0, capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]


class SharedValues:
    """Creates the values of this process's metrics in files, or in memory if the folder is full or was removed.

    Args:
        folder: Folder that the processes share.

    Attributes:
        unshared: Number of values in memory, which no process exposes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._create = folder, values.MultiProcessValue()  # type: ignore[no-untyped-call]
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
        except OSError as error:
            if not self.unshared:
                reason = os_error_text(error)
                log.warning("%s has no room for metrics (%s): they are missing until a restart", self._folder, reason)
            self.unshared += 1
            return values.MutexValue(*args, **options)  # type: ignore[no-untyped-call]


class SharedCollector(MultiProcessCollector):
    """Collects the values of all processes.

    Args:
        folder: Folder that the processes share. It may have been removed.
    """

    def __init__(self, folder: Path) -> None:
        self._path = str(folder)


class WorkerProcessCollector(Collector):
    """Standard process metrics (CPU, memory, files) of every worker, with the label ``pid``.

    Args:
        folder: Metrics folder shared by the workers.
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
