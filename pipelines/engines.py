"""Engines that call a function for many tasks, such as the files of a log: processes of this machine, Ray and Spark."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from multiprocessing import active_children, get_context, parent_process
from typing import Any, Protocol, TypeVar

from ranking.errors import RankerError, single_line

CONNECT_SECONDS = 10.0

Task = TypeVar("Task")
Result = TypeVar("Result")


class Engine(Protocol):
    """Calls a function for many tasks."""

    def __call__(self, function: Callable[[Task], Result], tasks: Sequence[Task], /) -> Iterable[Result]:
        """Call a function of a module for each task; tasks and results can be pickled, and results have any order."""


def run_in_processes(workers: int, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
    """Call a function for each task in processes of this machine; yields the results as they come.

    Args:
        workers: number of processes; see ``kept_processes``.
        function: function of a module.
        tasks: its arguments, which can be pickled.

    Raises:
        RankerError: a call raised one, or a process was killed.
    """
    kept = _kept.get()
    processes = _Processes(workers) if kept is None else kept.setdefault(workers, _Processes(workers))
    try:
        yield from processes.call(function, tasks)
    except BaseException as error:
        processes.kill()
        if isinstance(error, BrokenProcessPool):
            reason = "a worker was killed, perhaps because the memory was full: use fewer --workers"
            raise RankerError(reason) from None
        raise
    if kept is None:
        processes.end()


@contextmanager
def kept_processes() -> Iterator[None]:
    """Let the calls of ``run_in_processes`` in this context use the same processes, which take seconds to start."""
    if _kept.get() is not None:
        yield
        return
    kept: dict[int, _Processes] = {}
    token = _kept.set(kept)
    try:
        yield
    finally:
        _kept.reset(token)
        for processes in kept.values():
            processes.end()


class _Processes:
    """Processes that call functions; they start with the first call after they have ended."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def call(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        if self._pool is None:
            self._others = set(active_children())
            self._pool = ProcessPoolExecutor(self._workers, get_context("spawn"), initializer=_end_with_parent)
        # Workers inherit this: an interrupt, which a terminal also sends to them, is for this process.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = [self._pool.submit(_guarded, function, task) for task in tasks]
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for future in as_completed(futures):
            yield _unwrap(future.result())

    def kill(self) -> None:
        """End the processes without waiting for their tasks."""
        if self._pool is not None:
            for worker in set(active_children()) - self._others:
                worker.kill()
            self.end()

    def end(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


_kept: ContextVar[dict[int, _Processes] | None] = ContextVar("kept", default=None)
"""Processes by their number, inside ``kept_processes``."""


def run_with_ray(function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
    """Call a function for each task with Ray; yields the results as they come.

    The cluster is that of ``RAY_ADDRESS``, or else one that this process starts. Ray repeats tasks whose worker dies.

    Raises:
        RankerError: a call raised one, or there is no cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    address = os.environ.get("RAY_ADDRESS", "")
    try:
        if host := re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address):  # Ray would try for minutes.
            socket.create_connection((host[1], int(host[2])), CONNECT_SECONDS).close()
    except OSError as error:
        reason = single_line(error)
        raise RankerError(f"there is no Ray cluster at RAY_ADDRESS={address} ({reason}): start or correct it") from None
    try:
        ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level="error")
    except Exception as error:  # Ray raises Exception itself if it does not start in time
        raise RankerError(f"Ray could not start ({single_line(error)[:500]})") from None
    remote = ray.remote(_guarded)
    pending = [remote.remote(function, task) for task in tasks]
    try:
        while pending:
            (done,), pending = ray.wait(pending)
            yield _unwrap(ray.get(done))
    except ray.exceptions.RayError as error:
        raise RankerError(f"Ray could not complete a task ({single_line(error)})") from None
    finally:
        for task in pending:
            ray.cancel(task, force=True)


def run_with_spark(function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
    """Call a function for each task with Spark; yields the results when all have ended.

    The cluster is that of Spark's configuration, and workers run the Python of ``PYSPARK_PYTHON``, or else that of this
    process. Spark repeats tasks whose worker dies.

    Raises:
        RankerError: a call raised one, or Spark cannot run.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        context = SparkSession.builder.appName("ranker").getOrCreate().sparkContext
        results = context.parallelize(tasks, len(tasks)).map(partial(_guarded, function)).collect()
    except (Py4JError, PySparkException) as error:
        hint = ": install Java 17 or newer" if "JAVA_GATEWAY" in str(error) else ""
        raise RankerError(f"Spark could not complete the tasks ({single_line(error)[:500]}){hint}") from None
    yield from map(_unwrap, results)


def _end_with_parent() -> None:
    """End this process with the one that started it, which may be killed."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _guarded(function: Callable[[Any], Any], task: Any) -> tuple[Any, str | None]:
    """Return the result of a call, or the message of an error that a user can fix, which no engine should retry."""
    try:
        return function(task), None
    except RankerError as error:
        return None, str(error)


def _unwrap(outcome: tuple[Any, str | None]) -> Any:
    result, message = outcome
    if message is not None:
        raise RankerError(message)
    return result
