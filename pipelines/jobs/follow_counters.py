"""``ranker counters follow``: adds what was served and what users did to the counters in the feature store.

The labels of a counter become known after its delay, or at the following midnight. Each such rule has a position in
every file of the served log. The store keeps the positions with the sums, so that any process can continue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from pipelines.console import print_status
from pipelines.data.log_schema import bad_row_reasons
from pipelines.data.reader import as_log_error
from pipelines.feature_store.bundle_sums import BundleSums
from pipelines.feature_store.counter_store import CounterStore, load_served, read_state
from pipelines.feature_store.counter_writer import CounterWriter
from pipelines.jobs.check_counters import compare_sums, describe_missing
from pipelines.jobs.load_counters import load_counters
from pipelines.loop.closed_requests import ClosedRequests, ClosedRows, Window
from pipelines.loop.feedback_files import oldest_unfinished
from pipelines.loop.folder_locks import lock_folders
from pipelines.loop.sources import LoopSources
from ranking.artifacts import repository
from ranking.counters.stored_sums import definition
from ranking.encoding.feature_table import fill_features
from ranking.errors import LogError, OutputError, RankerError

MICROSECOND, DAY = timedelta(microseconds=1), timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CHECK_SECONDS = 3_600
"""Seconds between two comparisons of the sums with their totals."""
USED = "all"
"""Position of a file of which all requests were added."""


@dataclass(frozen=True)
class FollowOptions:
    """What to follow, and where to.

    Attributes:
        sources: the served log and feedback; ``repository`` is set.
        url: address of the store, see ``ranking.artifacts.store_address``.
        prefix: prefix of the keys.
        window: seconds after an impression in which feedback counts, for counters without a delay.
    """

    sources: LoopSources
    url: str
    prefix: str
    window: int


@dataclass(frozen=True)
class Rule:
    """Counters whose labels become known at the same time.

    Attributes:
        delay: seconds from the impression; None: the following midnight.
        writer: writer of these counters.
    """

    delay: int | None
    writer: CounterWriter

    @property
    def name(self) -> str:
        """Name of the rule in positions."""
        return "day" if self.delay is None else f"{self.delay}s"


class Follower:
    """Adds new impressions to the counters of the current version of one model.

    Args:
        options: what to follow.

    Raises:
        BundleError: the model cannot be read.
        OutputError: the store cannot be reached.
        UsageError: the address has an unsupported option, or the model has no counters.
    """

    def __init__(self, options: FollowOptions) -> None:
        self._options, self._generation = options, 0
        self._checked: tuple[int, float] | None = None
        self._open()

    def _open(self) -> None:
        options, sources = self._options, self._options.sources
        assert sources.repository is not None
        name, ranker, derived = load_served(sources.repository, sources.model)
        assert derived.clock is not None
        self._version = repository.read_release(sources.repository, name).version
        self._model, self._clock = name, derived.clock
        self._schema, self._tables = ranker.schema, ranker.tables
        self._store = CounterStore(options.url, options.prefix, name)
        self._store.require_no_eviction()
        self._requests = ClosedRequests(replace(sources, model=name), str(self._version))
        bundle = BundleSums(derived)
        self._rules = []
        counters = ranker.schema.counters
        for delay in dict.fromkeys(counter.delay_seconds for counter in counters):
            names = {counter.name for counter in counters if counter.delay_seconds == delay}
            writer = CounterWriter(self._store, ranker.schema, self._clock.zone, bundle, names)
            self._rules.append(Rule(delay, writer))

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
        with lock_folders([sources.served, sources.feedback]):
            return self._step(now)

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
        result = compare_sums(self._store, self._schema, self._clock)
        if message := describe_missing(result):
            print_status(f"{self._store.address} {message}")
        largest: float = max(abs(counter["missing"]) for counter in result["counters"].values())
        return largest

    def _step(self, now: datetime | None) -> dict[str, Any]:
        sources = self._options.sources
        assert sources.repository is not None
        if repository.read_release(sources.repository, self._model).version != self._version:
            self._open()
        self._load_missing(sources.repository)
        present = now or datetime.now(UTC)
        until = now or min(present, oldest_unfinished(sources.feedback) or present)
        rules = {rule.name: rule for rule in self._rules}
        positions = self._rules[0].writer.positions()
        windows, applied = self._windows(positions, until, present), 0
        with closing(self._requests.read(windows)) as chunks:
            for chunk in chunks:
                self._require_user_ids()
                applied += self._add(rules[chunk.window.name], chunk, positions)
        state = self._rules[0].writer.read_state()
        self._generation = state.generation
        return {
            "until": until.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "counters_as_of": replace(self._clock, until=state.until).text,
            "applied": applied,
            "left_out": self._requests.left_out,
        }

    def _load_missing(self, path: Path) -> None:
        """Load the counters of the current version unless the store has all of them, as of the same time or later.

        Raises:
            QualityGateError: much of what the store has would be lost.
        """
        state = read_state(self._store, self._store.state)
        definitions = {definition(counter) for counter in self._schema.counters}
        if state is None or not definitions <= {*state.base} or state.loaded_until < self._clock.until:
            options = self._options
            result = load_counters(path, options.url, self._model, options.prefix)
            print_status(f"loaded {result['values']:,} values of counters as of {result['counters_as_of']}")

    def _windows(self, positions: Mapping[str, str], until: datetime, now: datetime) -> list[Window]:
        """Return the window of each rule with the positions of the store."""
        start = self._rules[0].writer.read_state().loaded_until
        if self._clock.zone is None:  # a local time; the writer knows which impressions are newer
            start -= DAY // MICROSECOND
        of_files: dict[str, dict[str, int | None]] = {rule.name: {} for rule in self._rules}
        for name, position in positions.items():
            rule_name, _, file = name.partition(":")
            if rule_name in of_files:
                of_files[rule_name][file] = None if position == USED else int(position)
        windows = []
        for rule in self._rules:
            length = timedelta(seconds=rule.delay or self._options.window)
            closed = until - length
            if rule.delay is None:
                midnight = now.astimezone(None if self._clock.zone is None else ZoneInfo(self._clock.zone))
                closed = min(closed, midnight.replace(hour=0, minute=0, second=0, microsecond=0) - MICROSECOND)
            end = (closed - EPOCH) // MICROSECOND
            windows.append(Window(rule.name, length // MICROSECOND, end, start, of_files[rule.name]))
        return windows

    def _require_user_ids(self) -> None:
        file = self._requests.newest_file()
        if file is not None and file.hashed_users:
            raise LogError(
                f"{file.path}: holds hashes of user ids (served_log_user_key), but the counters in the store are of "
                "the ids themselves: serve without the key, or use counters as of the last training"
            )

    def _add(self, rule: Rule, chunk: ClosedRows, positions: dict[str, str]) -> int:
        """Add rows to the counters of a rule, and return the number of impressions."""
        rows, source = chunk.rows, str(chunk.file)
        if rows is not None:
            with as_log_error(source):
                rows = fill_features(rows, self._schema.logged, self._tables)
                rows = rows.filter(bad_row_reasons(rows, self._schema.logged, labels=True).is_null())
        name, after = f"{rule.name}:{chunk.file.name}", USED if chunk.position is None else str(chunk.position)
        _, applied = rule.writer.add(rows, source, name, positions.get(name), after)
        positions[name] = after
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
        options: what to follow.
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
            missing = follower.check()
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
            if missing is not None:
                metrics.missing.set(missing)
            for message in result["left_out"]:
                if message not in reported:
                    print_status(f"left out: {message}")
            reported = set(result["left_out"])
            if result["applied"]:
                print_status(
                    f"{result['applied']:,} impressions applied; counters as of {result['counters_as_of']}, "
                    f"followed until {result['until']}"
                )
        stop.wait(seconds)
