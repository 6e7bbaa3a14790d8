"""``ranker counters follow``: adds what was served and what users did to the counters in the feature store.

The labels of a counter become known after its delay, or at the following midnight. Each such rule has a position in
every file of the served log. The store keeps the positions with the sums, so that any process can continue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from pipelines.console import print_status
from pipelines.data.log_schema import bad_row_reasons
from pipelines.data.reader import as_log_error
from pipelines.jobs.check_counters import compare_sums, describe_missing
from pipelines.jobs.followed_version import FollowedVersion, FollowOptions, Rule, midnight
from pipelines.loop.attribution import MICROSECOND, microseconds
from pipelines.loop.closed_requests import ClosedRows, Window
from pipelines.loop.feedback_files import oldest_unfinished
from pipelines.loop.folder_locks import lock_folders
from ranking.artifacts import repository
from ranking.counters.stored_sums import StateValue
from ranking.encoding.feature_table import fill_features
from ranking.errors import LogError, OutputError, RankerError

DAY = timedelta(days=1)
KEEP_DAYS = 7.0
"""Days for which a copy of a repository keeps versions that are no longer released: the served log may name them."""
CHECK_SECONDS = 3_600
"""Seconds between two comparisons of the sums with their totals."""


class Follower:
    """Adds new impressions to the counters of the current version of one model.

    Args:
        options: sources and destination.

    Raises:
        RankerError: see ``FollowedVersion``.
    """

    def __init__(self, options: FollowOptions) -> None:
        self._reported, self._options = "", options
        self._update_copy()
        self._current = FollowedVersion(options)
        self._options = replace(options, sources=replace(options.sources, model=self._current.name))
        self._generation = 0
        self._checked: tuple[int, float] | None = None

    def step(self, now: datetime | None = None) -> dict[str, Any]:
        """Add the impressions whose labels have become known.

        Counters that the store does not have, or has of an earlier version, are loaded first.

        Args:
            now: time to follow until; default: the current time, or that of the oldest unfinished file of feedback.

        Returns:
            ``until`` (the time to which the served log and feedback were followed), ``counters_as_of``, the number of
            impressions that were ``applied``, and messages about damaged input that was ``left_out``.

        Raises:
            RankerError: a file cannot be read, or the store cannot be written; the step can be repeated.
        """
        sources = self._options.sources
        self._update_copy()
        assert sources.repository is not None
        folder = sources.repository
        if repository.read_release(folder, self._current.name).version != self._current.version:
            self._current = FollowedVersion(self._options)
        self._current.load_missing()
        with lock_folders([sources.served, sources.feedback]):
            return self._step(now)

    def _update_copy(self) -> None:
        """Update a copy of a repository in object storage; if that fails, follow the versions of the copy.

        Raises:
            RankerError: that fails, and the copy has no model.
        """
        remote, folder = self._options.remote, self._options.sources.repository
        if remote is None or folder is None:
            return
        error = ""
        try:
            remote.pull(folder, overwrite=True, keep_days=KEEP_DAYS)
        except RankerError as failure:
            if not (folder.is_dir() and repository.list_models(folder)):
                raise
            error = str(failure)
        if error and error != self._reported:
            print_status(f"{error}; continuing with the copy in {folder}")
        self._reported = error

    def check(self) -> float | None:
        """Compare the sums in the store with their totals, hourly and after each load; None if it is not time.

        Returns:
            The largest difference of a counter in impressions.

        Raises:
            OutputError: the store cannot be read.
        """
        due = self._generation, time.monotonic() // CHECK_SECONDS
        if due == self._checked:
            return None
        self._checked = due
        current = self._current
        result = compare_sums(current.store, current.schema, current.clock)
        if message := describe_missing(result):
            print_status(f"{current.store.address} {message}")
        largest: float = max(abs(counter["missing"]) for counter in result["counters"].values())
        return largest

    def _step(self, now: datetime | None) -> dict[str, Any]:
        current, present = self._current, now or datetime.now(UTC)
        until = now or min(present, oldest_unfinished(self._options.sources.feedback) or present)
        state, applied = current.require_state(), 0
        self._generation = state.generation
        windows = {window.name: window for window in self._windows(state, until, present)}
        rules = {rule.name: rule for rule in current.rules}
        with closing(current.requests.read(list(windows.values()))) as chunks:
            for chunk in chunks:
                applied += self._add(rules[chunk.window.name], chunk, state.generation)
        return {
            "until": until.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "counters_as_of": replace(current.clock, until=current.require_state().until).text,
            "applied": applied,
            "left_out": current.requests.left_out,
        }

    def _windows(self, state: StateValue, until: datetime, now: datetime) -> Iterator[Window]:
        """Yield the window of each rule with the positions of the store."""
        current, start = self._current, state.loaded_until
        if current.clock.zone is None:  # a local time; the writer knows which impressions are newer
            start -= DAY // MICROSECOND
        for rule in current.rules:
            length = timedelta(seconds=rule.delay or self._options.window)
            closed = until - length
            if rule.delay is None:
                closed = min(closed, midnight(now, current.clock.zone) - MICROSECOND)
            positions = current.positions.read(rule.name)
            yield Window(rule.name, length // MICROSECOND, microseconds(closed), start, positions)

    def _add(self, rule: Rule, chunk: ClosedRows, generation: int) -> int:
        """Add rows to the counters of a rule, and return the number of impressions."""
        if chunk.file.hashed_users:
            raise LogError(
                f"{chunk.file.path}: holds hashes of user ids (served_log_user_key), but the counters in the store are "
                "of the ids themselves: serve without the key, or use counters as of the last training"
            )
        rows, file, schema = chunk.rows, chunk.file.path, self._current.schema.logged
        if rows is not None:
            with as_log_error(str(file)):
                rows = fill_features(rows, schema, self._current.tables)
                rows = rows.filter(bad_row_reasons(rows, schema, labels=True).is_null())
        position = rule.name, file.name, chunk.before, chunk.position
        _, applied = rule.writer.add(rows, str(file), generation, *position)
        return applied


class FollowMetrics:
    """Metrics of the command for Prometheus.

    Args:
        port: port to listen on; None: the metrics are not exposed.
        host: address to listen on.

    Attributes:
        registry: registry of the metrics.

    Raises:
        OutputError: the port cannot be opened.
    """

    def __init__(self, port: int | None, host: str = "127.0.0.1") -> None:
        self.registry = registry = CollectorRegistry()
        self.until = Gauge(
            "ranker_counters_followed_timestamp_seconds",
            "Unix time to which the served log and feedback were added to the counters",
            registry=registry,
        )
        self.applied = Counter("ranker_counters_applied", "impressions added to counters", registry=registry)
        self.left_out = Gauge(
            "ranker_counters_damaged_files",
            "files of the served log and feedback that the last step left out in whole or part",
            registry=registry,
        )
        self.missing = Gauge(
            "ranker_counters_missing_impressions",
            "largest difference between the sums of a counter in the store and their total, in impressions",
            registry=registry,
        )
        self.failures = Counter("ranker_counters_failures", "steps that failed", registry=registry)
        if port is not None:
            try:
                start_http_server(port, host, registry=registry)
            except OSError as error:
                raise OutputError(
                    f"port {port} of {host}: cannot be opened ({error.strerror}); choose another one"
                ) from None


def follow(options: FollowOptions, seconds: float, metrics: FollowMetrics, stop: threading.Event) -> None:
    """Follow until stopped; a step that fails is reported and repeated.

    Args:
        options: sources and destination.
        seconds: seconds between two steps.
        metrics: metrics to update.
        stop: ends the command after the current step.

    Raises:
        RankerError: the first step cannot start, see ``Follower``.
    """
    follower, failure = Follower(options), ""
    reported: set[str] = set()
    while not stop.is_set():
        try:
            result = follower.step()
        except RankerError as error:
            metrics.failures.inc()
            if str(error) != failure:
                print_status(f"{error}; trying again every {seconds:g} s")
            failure = str(error)
        else:
            failure = ""
            metrics.until.set(datetime.fromisoformat(result["until"]).timestamp())
            metrics.applied.inc(result["applied"])
            metrics.left_out.set(len(result["left_out"]))
            for message in result["left_out"]:
                if message not in reported:
                    print_status(f"left out: {message}")
            reported = set(result["left_out"])
            if result["applied"]:
                print_status(
                    f"{result['applied']:,} impressions applied; counters as of {result['counters_as_of']}, "
                    f"followed until {result['until']}"
                )
            try:
                missing = follower.check()
            except OutputError as error:
                print_status(str(error))
            else:
                if missing is not None:
                    metrics.missing.set(missing)
        stop.wait(seconds)
