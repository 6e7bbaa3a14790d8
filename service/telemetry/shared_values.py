"""Values of metrics that several processes share through files, and keep in memory while the files cannot hold them."""

from __future__ import annotations

import json
import logging
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import values
from prometheus_client.core import Metric
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from ranking.temporary_folders import FolderLock

log = logging.getLogger("ranker.service")

INITIAL_BYTES = 64 * 1024
"""Initial size of a file, enough for some 300 values."""

UNREADABLE = (OSError, RuntimeError, ValueError, struct.error)
"""Errors of prometheus_client on a file that is damaged or was removed while it was read."""


class AllocatedFile(MmapedDict):
    """prometheus_client's file of one process and kind of metric, with all its blocks allocated before they are used.

    prometheus_client extends files without allocating blocks. A write to a block that a full filesystem cannot provide
    ends the process with SIGBUS.

    Args:
        path: Path of the file, which is created if it does not exist.

    Raises:
        OSError: The file cannot be created, or its filesystem has no room for it.
    """

    def __init__(self, path: Path) -> None:
        if not path.exists():  # else a terminated process had the same id, and this process continues its counts
            draft = path.with_suffix(".draft")
            try:
                with draft.open("wb") as file:
                    os.posix_fallocate(file.fileno(), 0, INITIAL_BYTES)
                draft.rename(path)  # readers never see an empty file
            except OSError:
                draft.unlink(missing_ok=True)
                raise
        super().__init__(str(path))  # type: ignore[no-untyped-call]

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


class SharedValue:
    """A value with the methods that prometheus_client's metrics call.

    Args:
        store: Store that created the value.
        prefix: Prefix of the name of its file: the type of the metric and, for gauges, how processes are combined.
        key: Key in the file.
    """

    __slots__ = ("_store", "_timestamp", "_value", "file", "key", "prefix")

    def __init__(self, store: SharedValues, prefix: str, key: str) -> None:
        self._store, self.prefix, self.key = store, prefix, key
        self._value = self._timestamp = 0.0
        self.file: AllocatedFile | None = None

    def inc(self, amount: float) -> None:
        """Add an amount."""
        with self._store.lock:
            self._value += amount
            self._timestamp = 0.0
            self._write()

    def set(self, value: float, timestamp: float | None = None) -> None:
        """Replace the value."""
        with self._store.lock:
            self._value, self._timestamp = value, timestamp or 0.0
            self._write()

    def get(self) -> float:
        """Return the value."""
        return self._value

    def set_exemplar(self, exemplar: Any) -> None:
        """Do nothing: files have no exemplars."""

    def get_exemplar(self) -> None:
        """Return None: files have no exemplars."""

    def share(self, file: AllocatedFile) -> None:
        """Write the value to a file from now on.

        Raises:
            OSError: The filesystem has no room.
        """
        stored, _ = file.read_value(self.key)  # type: ignore[no-untyped-call]
        if not self.prefix.startswith("gauge"):
            self._value += stored  # of a terminated process that had the same id
        self.file = file
        self._write()

    def _write(self) -> None:
        if self.file is not None:
            self.file.write_value(self.key, self._value, self._timestamp)  # type: ignore[no-untyped-call]


class SharedValues:
    """The values of this process: in its files in a shared folder, or in memory while they cannot be stored there.

    Values in memory are exposed by this process only, with its id as the label ``pid``. Storing them is tried again
    whenever metrics are collected and when a value is added.

    Args:
        folder: Folder that the processes share. It may be full, or not exist.

    Attributes:
        lock: Guards all values.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.lock = threading.Lock()
        self._folder_lock: FolderLock | None = None
        self._files: dict[str, AllocatedFile] = {}
        self._values: list[SharedValue] = []
        self._unshared: list[SharedValue] = []
        self._full: set[str] = set()  # prefixes of files that have no room
        self._warned = False

    def install(self) -> None:
        """Let this process's metrics store the values that they create from now on here."""
        values.ValueClass = self.create

    def create(
        self,
        kind: str,
        metric_name: str,
        name: str,
        label_names: Sequence[str],
        label_values: Sequence[str],
        documentation: str,
        multiprocess_mode: str = "",
        **_: Any,
    ) -> SharedValue:
        """Create a value; takes the arguments that prometheus_client passes to its class of values."""
        prefix = f"{kind}_{multiprocess_mode}" if kind == "gauge" else kind
        key = mmap_key(metric_name, name, list(label_names), list(label_values), documentation)
        value = SharedValue(self, prefix, key)
        with self.lock:
            self._values.append(value)
        self._share([value])
        return value

    def share_all(self) -> None:
        """Store the values that are only in memory, or whose file was removed."""
        with self.lock:
            for prefix in [prefix for prefix in self._files if not self._path(prefix).exists()]:
                del self._files[prefix]
            for value in self._values:
                if value.file is not None and value.file is not self._files.get(value.prefix):
                    value.file = None
                    self._unshared.append(value)
            pending, self._unshared = self._unshared, []
            self._full.clear()
        self._share(pending)

    @property
    def unshared(self) -> int:
        """Number of values that are only in memory."""
        return len(self._unshared)

    def unshared_metrics(self) -> Iterator[Metric]:
        """Yield the metrics of the values that are only in memory, with the label ``pid``."""
        metrics: dict[str, Metric] = {}
        buckets: dict[tuple[str, ...], list[tuple[float, float, dict[str, str]]]] = {}
        with self.lock:
            unshared = [(value.prefix, value.key, value.get()) for value in self._unshared]
        for prefix, key, number in unshared:
            metric_name, name, labels, documentation = json.loads(key)
            kind = prefix.partition("_")[0]
            metric = metrics.setdefault(metric_name, Metric(metric_name, documentation, kind))
            labels["pid"] = str(os.getpid())
            if "le" in labels:
                bound = float(labels.pop("le"))
                buckets.setdefault((metric_name, *labels.values()), []).append((bound, number, labels))
            else:
                metric.add_sample(name, labels, number)
        for (metric_name, *_), series in buckets.items():
            total = 0.0
            for bound, number, labels in sorted(series, key=lambda bucket: bucket[0]):
                total += number
                labels_of_bucket = labels | {"le": floatToGoString(bound)}  # type: ignore[no-untyped-call]
                metrics[metric_name].add_sample(f"{metric_name}_bucket", labels_of_bucket, total)
            metrics[metric_name].add_sample(f"{metric_name}_count", series[0][2], total)
        yield from metrics.values()

    def _path(self, prefix: str) -> Path:
        return self._folder / f"{prefix}_{os.getpid()}.db"

    def _share(self, new: Sequence[SharedValue]) -> None:
        """Try to store values; after a failure, no further value of that file is tried until ``share_all``."""
        failure: Exception | None = None
        with self.lock:
            first = not self._unshared
            for value in new:
                if value.prefix not in self._full:
                    try:
                        value.share(self._open(value.prefix))
                        continue
                    except (OSError, ValueError, IndexError) as error:  # no room for the file or for its mapping
                        failure = error
                        self._full.add(value.prefix)
                self._unshared.append(value)
        if failure is not None and first and not self._warned:
            self._warned = True
            log.warning(
                "metrics cannot be stored in %s (%s): until they can, this process alone exposes them, with the label "
                "'pid'",
                self._folder,
                getattr(failure, "strerror", None) or failure,
            )
        elif self._warned and not self._unshared:
            self._warned = False
            log.info("metrics are stored in %s again", self._folder)

    def _open(self, prefix: str) -> AllocatedFile:
        if prefix not in self._files:
            self._folder_lock = FolderLock(self._folder)  # workers outlive a supervisor that is killed
            self._files[prefix] = AllocatedFile(self._path(prefix))
        return self._files[prefix]


class SharedCollector(Collector):
    """Collects the values of all processes from their files, and of this process from memory where necessary.

    Args:
        folder: Folder that the processes share.
        store: Values of this process.
    """

    def __init__(self, folder: Path, store: SharedValues) -> None:
        self._folder, self._store = folder, store

    def collect(self) -> Iterator[Metric]:
        """Yield one family per metric."""
        self._store.share_all()
        families: dict[str, Metric] = {}
        for metric in (*_read(self._folder), *self._store.unshared_metrics()):
            families.setdefault(
                metric.name, Metric(metric.name, metric.documentation, metric.type)
            ).samples += metric.samples
        yield from families.values()


def _read(folder: Path) -> list[Metric]:
    """Return the metrics in the files of a folder, without those of files that cannot be read."""
    paths = list(map(str, folder.glob("*.db")))
    try:
        return list(MultiProcessCollector.merge(paths))  # type: ignore[no-untyped-call]
    except UNREADABLE:
        return list(MultiProcessCollector.merge(filter(_is_readable, paths)))  # type: ignore[no-untyped-call]


def _is_readable(path: str) -> bool:
    try:
        return bool(list(MmapedDict.read_all_values_from_file(path)))  # type: ignore[no-untyped-call]
    except UNREADABLE:
        return False
