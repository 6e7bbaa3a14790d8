"""Counters and histories that would become poorer: what a new state lacks of the one that it replaces.

A model that is trained on a part of the log has the sums of this part only. Published, it forgets the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.console import print_status
from ranking.artifacts.bundle import COUNTERS, as_bundle_error, read_schema
from ranking.counters.combine import Records, within_window
from ranking.counters.features import CounterFeatures
from ranking.counters.state import StateClock
from ranking.counters.stored_sums import StateValue, decode_records, definition
from ranking.counters.values import MICROSECONDS, decay
from ranking.errors import QualityGateError
from ranking.schema import Counter, History, Schema
from ranking.schema.counters import seconds_of

TOLERATED = 0.1
"""Share of the impressions of a counter, or of the ids of a history, that may be lost: old days leave a log, users are
forgotten."""
TOLERATED_TIME = 0.25
"""Share of the time that a counter or history covers that may be lost: a log that keeps a week loses a day each day."""
HALF_LIVES = 4
"""Half-lives after which an impression hardly counts."""
FLAG = "--allow-poorer-counters"
FIX = (
    "train on the whole history: name it and the joined log in logs.path, such as path = ['log', 'joined']; or use "
    f"{FLAG}"
)
"""Fix that keeps the counters; the end of messages."""


@dataclass(frozen=True)
class Loss:
    """Loss of a counter or a history.

    Attributes:
        name: name of the counter or history.
        before: impressions in the sums of the counter, or ids in the lists of the history.
        after: the same in the new state.
        since: start of the new state if too much time before it is lost, else None.
    """

    name: str
    before: float
    after: float
    since: str | None = None

    @property
    def is_tolerated(self) -> bool:
        """Whether at most ``TOLERATED`` and ``TOLERATED_TIME`` are lost."""
        return self.since is None and self.after >= (1 - TOLERATED) * self.before

    def __str__(self) -> str:
        parts = []
        if self.after < self.before:
            parts.append(f"{self.after:,.0f} instead of {self.before:,.0f}")
        if self.since is not None:
            parts.append(f"none before {self.since}")
        return f"{self.name} {' and '.join(parts)}"


@dataclass(frozen=True)
class Coverage:
    """Impressions and ids that a state covers.

    Attributes:
        clock: time of the state.
        base: sums over all keys by the definition of their counter.
        ids: number of ids in the lists of each history.
    """

    clock: StateClock
    base: Mapping[int, tuple[Counter, Records]]
    ids: Mapping[History, int]

    @classmethod
    def of_bundle(cls, counter_features: CounterFeatures | None) -> Coverage | None:
        """Return that of a bundle; None without counters and histories."""
        if counter_features is None or counter_features.clock is None:
            return None
        base = {definition(state.counter): (state.counter, state.base) for state in counter_features.counters.values()}
        histories = {history.name: history for history in counter_features.schema.histories}
        ids = {histories[name]: len(state.items.flatten()) for name, state in counter_features.histories.items()}
        return cls(counter_features.clock, base, ids)

    @classmethod
    def of_state(cls, folder: Path, schema: Schema) -> Coverage | None:
        """Return that of the folder of a state; None without counters and histories.

        Raises:
            BundleError: the state is damaged.
        """
        with as_bundle_error(folder):
            return cls.of_bundle(CounterFeatures.open(folder, schema))

    @classmethod
    def of_version(cls, folder: Path) -> Coverage | None:
        """Return that of a published version, which is not verified; None without counters and histories.

        Raises:
            BundleError: the version is damaged.
        """
        return cls.of_state(folder / COUNTERS, read_schema(folder))

    @classmethod
    def of_store(cls, state: StateValue, counters: Iterable[Counter], zone: str | None) -> Coverage:
        """Return that of the sums in a store, which has no histories."""
        known = {definition(counter): counter for counter in counters if definition(counter) in state.base}
        base = {key: (counter, decode_records(counter, state.base[key])) for key, counter in known.items()}
        return cls(StateClock(state.until, zone, state.since), base, {})

    def losses(self, new: Coverage) -> list[Loss]:
        """Return what another state lacks of this one.

        Both are compared as of the later of their times, so that windows and half-lives do not count as a loss. Of
        counters and histories that only the new state has, such as those with another window, the time is compared.
        """
        now = max(self.clock.until, new.clock.until)
        losses = []
        for key, (counter, records) in new.base.items():
            before = _impressions(*self.base[key], now, self.clock) if key in self.base else 0.0
            after = _impressions(counter, records, now, new.clock)
            losses.append(Loss(counter.name, before, after, self._lost_time(new.clock, now - _reach(counter))))
        for history, count in new.ids.items():
            since = self._lost_time(new.clock, self.clock.since or 0)
            losses.append(Loss(history.name, self.ids.get(history, 0), count, since))
        return [loss for loss in losses if loss.after < loss.before or loss.since is not None]

    def _lost_time(self, new: StateClock, start: float) -> str | None:
        """Return the start of a new state if more than ``TOLERATED_TIME`` of this one's time from ``start`` on is lost.

        None if the first impression of either is unknown.
        """
        if self.clock.since is None or new.since is None:
            return None
        start, end = max(start, self.clock.since), self.clock.until
        lost = min(new.since, end) - start
        return new.text_of(new.since) if lost > TOLERATED_TIME * (end - start) else None


def _reach(counter: Counter) -> float:
    """Return the microseconds after which an impression does not count, or hardly; infinite for a plain counter."""
    if counter.window is not None:
        return seconds_of(counter.window) * MICROSECONDS
    return HALF_LIVES * counter.half_life_seconds * MICROSECONDS if counter.half_life_seconds else math.inf


def _impressions(counter: Counter, base: Records, now: int, clock: StateClock) -> float:
    """Return the number of impressions in sums over all keys, as the counter weighs them at a time."""
    records = within_window(counter, base, now, clock.zone)
    return float(np.sum(records["count"] * decay((now - records["last"]) / MICROSECONDS, counter)))


def describe_losses(losses: Iterable[Loss]) -> str:
    """Return losses as text: impressions of counters, ids of histories."""
    return ", ".join(map(str, losses))


def require_coverage(
    old: Coverage | None,
    new: Coverage | None,
    before: str | Path,
    after: str | Path,
    *,
    allow: bool,
    report: bool = True,
) -> None:
    """Check that a new state lacks little of the one that it replaces.

    Args:
        old: coverage of the state that is replaced.
        new: coverage of the new state.
        before: name of the state that is replaced.
        after: name of the new state.
        allow: whether any loss is accepted.
        report: whether to print an accepted loss.

    Raises:
        QualityGateError: more than ``TOLERATED`` of a counter or history would be lost.
    """
    losses = [] if old is None or new is None else old.losses(new)
    large = [loss for loss in losses if not loss.is_tolerated]
    if large and not allow:
        raise QualityGateError(
            f"{after} has poorer counters than {before} (impressions, or ids of histories): {describe_losses(large)}. "
            f"Users and items would lose their past; {FIX}"
        )
    if losses and report:
        print_status(f"{after} has poorer counters than {before}: {describe_losses(losses)}")
