"""A version of a model whose counters ``ranker counters follow`` keeps up to date in the feature store."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from datetime import time as time_of_day
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.console import print_status
from pipelines.feature_store.bundle_sums import BundleSums
from pipelines.feature_store.counter_store import CounterStore, has_counters, load_served, read_state, require_state
from pipelines.feature_store.counter_values import distinct_counters
from pipelines.feature_store.counter_writer import CounterWriter
from pipelines.feature_store.positions import Positions
from pipelines.jobs.load_counters import load_sums
from pipelines.loop.closed_requests import ClosedRequests
from pipelines.loop.sources import LoopSources
from ranking.artifacts.remote_repository import RemoteRepository
from ranking.counters.stored_sums import StateValue, definition
from ranking.errors import OutputError, QualityGateError

RETRY_SECONDS = 300
"""Seconds after a failed load until the next one, while the store has counters that can be used."""


@dataclass(frozen=True)
class FollowOptions:
    """Sources and destination of ``ranker counters follow``.

    Attributes:
        sources: the served log and feedback; ``repository`` is set.
        url: address of the store, see ``ranking.artifacts.store_address``.
        prefix: prefix of the keys.
        window: seconds after an impression in which feedback counts, for counters without a delay.
        remote: repository in object storage of which that of the sources is a copy; None if it is not a copy.
    """

    sources: LoopSources
    url: str
    prefix: str
    window: int
    remote: RemoteRepository | None = None


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
        """Name of the reader in the positions."""
        return "day" if self.delay is None else f"{self.delay}s"


class FollowedVersion:
    """A version of a model, and the store with its counters.

    Args:
        options: sources and destination.

    Raises:
        BundleError: the model cannot be read.
        OutputError: the store cannot be reached.
        UsageError: the address has an unsupported option, or the model has no counters.
    """

    def __init__(self, options: FollowOptions) -> None:
        sources = options.sources
        assert sources.repository is not None
        served = load_served(sources.repository, sources.model)
        self.name, self.version, self.clock, self.counter_features = (
            served.name,
            served.version,
            served.clock,
            served.counter_features,
        )
        self.schema, self.tables = served.ranker.schema, served.ranker.tables
        self.store = CounterStore(options.url, options.prefix, self.name)
        self.store.require_no_eviction()
        self.requests = ClosedRequests(replace(sources, model=self.name), str(self.version))
        counters = distinct_counters(self.schema)
        delays = sorted(f"{definition(counter):x}={counter.delay_seconds}" for counter in counters)
        self.positions = Positions(self.store, " ".join(delays))
        bundle = BundleSums(self.counter_features)
        self.rules = []
        for delay in dict.fromkeys(counter.delay_seconds for counter in counters):
            names = {counter.name for counter in counters if counter.delay_seconds == delay}
            writer = CounterWriter(self.store, self.schema, self.clock.zone, bundle, self.positions, names)
            self.rules.append(Rule(delay, writer))
        self._next_load = -math.inf

    def require_state(self) -> StateValue:
        """Read the state of the counters in the store.

        Raises:
            OutputError: the store cannot be reached, or lacks counters.
        """
        return require_state(self.store, self.schema.counters, "fix the store; the step is repeated")

    def load_missing(self) -> None:
        """Load the counters unless the store has all of them, as of the same time or later, with the same delays.

        If that fails, or if they are poorer than those in the store, the counters in the store stay in use.

        Raises:
            OutputError: the store cannot be written, and has no counters that can be used.
            QualityGateError: the counters are poorer than those in the store, which cannot be used.
        """
        state = read_state(self.store, self.store.state)
        usable = state is not None and has_counters(state, self.schema.counters)
        usable = usable and not self.positions.have_other_rules()
        current = state is not None and state.loaded_until >= self.clock.until
        if usable and (current or time.monotonic() < self._next_load):
            return
        try:
            load_sums(self.store, self.counter_features, self.clock)
        except (QualityGateError, OutputError) as error:
            if not usable:
                raise
            self._next_load = math.inf if isinstance(error, QualityGateError) else time.monotonic() + RETRY_SECONDS
            print_status(f"{error}; impressions are added to the counters in the store")


def midnight(now: datetime, zone: str | None) -> datetime:
    """Return the start of a day in a time zone; None for that of this machine."""
    if zone is None:
        return datetime.combine(now.astimezone().date(), time_of_day.min).astimezone()
    times = pc.local_timestamp(pa.array([now.astimezone(UTC)], pa.timestamp("us", zone)))
    days = pc.floor_temporal(times, unit="day")
    (start,) = pc.assume_timezone(days, zone, ambiguous="earliest", nonexistent="latest").to_pylist()
    return cast("datetime", start)
