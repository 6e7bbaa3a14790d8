"""``ranker counters follow``: adds what was served and what users did to the counters in the feature store.

The labels of a counter become known after its delay, or at the following midnight. Each such rule has a joined log. The
transactions of ``ranker counters apply`` add its files to the counters of the rule, so that nothing counts twice.
"""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from pipelines.console import print_status
from pipelines.data.reader import LogReader
from pipelines.jobs.apply_counters import ChunkWriter
from pipelines.jobs.bundle_sums import BundleSums
from pipelines.jobs.counter_store import CounterStore, load_served
from pipelines.jobs.join import JoinSources, join_locked
from pipelines.loop.folder_locks import lock_folders
from pipelines.loop.served_files import DamagedFileError, ServedFile, find_served_files
from ranking.artifacts import repository
from ranking.errors import LogError, OutputError, RankerError
from ranking.schema import Schema

DAY_FOLDER = "run-*/day=*"
"""Folders of the rows of one day in a joined log."""


@dataclass(frozen=True)
class FollowOptions:
    """What to follow, and where to.

    Attributes:
        sources: the served log and feedback; ``model`` and ``repository`` are set.
        url: address of the store, see ``ranking.artifacts.store_address``.
        prefix: prefix of the keys.
        state: folder of the joined logs.
        window: seconds after an impression in which feedback counts, for counters without a delay.
    """

    sources: JoinSources
    url: str
    prefix: str
    state: Path
    window: int


@dataclass
class Rule:
    """Counters whose labels become known at the same time.

    Attributes:
        delay: seconds from the impression; None: the following midnight.
        log: folder of the joined log.
        writer: writer of these counters.
        applied: files that are applied to the loaded state.
    """

    delay: int | None
    log: Path
    writer: ChunkWriter
    applied: set[Path] = field(default_factory=set)


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
        self._options = options
        self._generation = 0
        self._open()

    def _open(self) -> None:
        sources = self._options.sources
        assert sources.repository is not None
        self._name, ranker, derived = load_served(sources.repository, sources.model)
        assert derived.clock is not None
        self._version = repository.read_release(sources.repository, self._name).version
        self._schema: Schema = ranker.schema.logged
        self._tables, self._clock = dict(ranker.tables), derived.clock
        store = CounterStore(self._options.url, self._options.prefix, self._name)
        store.require_no_eviction()
        bundle = BundleSums(derived)
        counters = ranker.schema.counters
        self._rules = []
        for delay in dict.fromkeys(counter.delay_seconds for counter in counters):
            names = {counter.name for counter in counters if counter.delay_seconds == delay}
            folder = self._options.state / ("day" if delay is None else f"delay-{delay}s")
            self._rules.append(Rule(delay, folder, ChunkWriter(store, ranker.schema, self._clock.zone, bundle, names)))

    def step(self, now: datetime | None = None) -> dict[str, Any]:
        """Add the impressions whose labels have become known.

        Args:
            now: time to follow until; default: the current time, or that of the oldest unfinished file of feedback.

        Returns:
            ``until`` (the time to which the served log and feedback were followed), ``counters_as_of``, the number of
            impressions that were ``applied``, and messages about damaged input that was ``left_out``.

        Raises:
            RankerError: a file cannot be read, or the store cannot be written; the step can be repeated.
        """
        sources = self._options.sources
        with lock_folders([sources.served, sources.feedback, self._options.state]):
            return self._step(now)

    def _step(self, now: datetime | None) -> dict[str, Any]:
        sources = self._options.sources
        assert sources.repository is not None
        if repository.read_release(sources.repository, self._name).version != self._version:
            self._open()
        self._require_user_ids()
        applied, until, left_out = 0, [], dict[str, None]()
        for rule in self._rules:
            state = rule.writer.read_state()
            if state.generation != self._generation:  # the counters were loaded again
                self._generation = state.generation
                for other in self._rules:
                    other.applied.clear()
            window = rule.delay or self._options.window
            counts = join_locked(replace(sources, model=self._name), rule.log, window, now)
            until.append(counts.until)
            left_out.update(dict.fromkeys(counts.left_out))
            applied += self._apply(rule, now or datetime.now(UTC))
            self._remove_old(rule, self._date(state.loaded_until))
        state = self._rules[0].writer.read_state()
        as_of = replace(self._clock, until=state.until).text
        return {"until": min(until), "counters_as_of": as_of, "applied": applied, "left_out": list(left_out)}

    def _require_user_ids(self) -> None:
        for file in reversed(find_served_files(self._options.sources.served)):
            try:
                hashed = ServedFile.open(file).hashed_users
            except DamagedFileError:  # the join reports it
                continue
            if hashed:
                raise LogError(
                    f"{file}: holds hashes of user ids (served_log_user_key), but the counters in the store are of "
                    "the ids themselves: serve without the key, or use counters as of the last training"
                )
            return

    def _apply(self, rule: Rule, now: datetime) -> int:
        """Apply the files of a rule whose labels are known, and return the number of impressions."""
        applied = 0
        today = now.astimezone(None if self._clock.zone is None else ZoneInfo(self._clock.zone)).date()
        for folder in sorted(rule.log.glob(DAY_FOLDER)):
            if rule.delay is None and _day(folder) >= today:
                continue
            for file in sorted(folder.glob("*.parquet")):
                if file in rule.applied:
                    continue
                for chunk in LogReader(file, self._schema, self._tables).scan():
                    marker = f"{rule.log.name}:{chunk.name}"
                    if not rule.writer.is_applied(marker):
                        applied += rule.writer.apply(chunk, marker)[1]
                rule.applied.add(file)
        return applied

    def _remove_old(self, rule: Rule, loaded: date) -> None:
        """Remove the days before that of the loaded state: a later load contains them too."""
        for folder in rule.log.glob(DAY_FOLDER):
            if _day(folder) < loaded:
                shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):  # the newest run keeps the state of the join
                    folder.parent.rmdir()

    def _date(self, microseconds: int) -> date:
        """Return the local date of a time on the clock of the counters."""
        return replace(self._clock, until=microseconds).date


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
        stop.wait(seconds)


def _day(folder: Path) -> date:
    return date.fromisoformat(folder.name.removeprefix("day="))
