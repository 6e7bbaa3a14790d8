"""Counters and histories that would become poorer: what a new state lacks of the one that it replaces.

A model that is trained on a part of the log has the sums of this part only. Published, it forgets the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipelines.console import print_status
from ranking.artifacts.bundle import COUNTERS, as_bundle_error, parse_schema
from ranking.counters.combine import Records, within_window
from ranking.counters.features import DerivedFeatures
from ranking.counters.state import StateClock
from ranking.counters.stored_sums import StateValue, decode_records, definition
from ranking.counters.values import MICROSECONDS, decay
from ranking.errors import QualityGateError
from ranking.regular_files import read_regular
from ranking.schema import Counter, History, Schema

TOLERATED = 0.1
"""Share of the impressions of a counter, or of the ids of a history, that may be lost: old days leave a log, users are
forgotten."""
FLAG = "--allow-poorer-counters"
FIX = (
    "train on the whole history: name it and the joined log in logs.path, such as path = ['log', 'joined']; or use "
    f"{FLAG}"
)
"""How to keep the counters; the end of messages."""


@dataclass(frozen=True)
class Loss:
    """What a counter or a history loses.

    Attributes:
        name: name of the counter or history.
        before: impressions in the sums of the counter, or ids in the lists of the history.
        after: the same in the new state.
    """

    name: str
    before: float
    after: float

    @property
    def is_tolerated(self) -> bool:
        """Whether at most ``TOLERATED`` is lost."""
        return self.after >= (1 - TOLERATED) * self.before

    def __str__(self) -> str:
        return f"{self.name} {self.after:,.0f} instead of {self.before:,.0f}"


@dataclass(frozen=True)
class Coverage:
    """What a state covers.

    Attributes:
        clock: time of the state.
        base: sums over all keys by the definition of their counter.
        ids: number of ids in the lists of each history.
    """

    clock: StateClock
    base: Mapping[int, tuple[Counter, Records]]
    ids: Mapping[History, int]

    @classmethod
    def of_bundle(cls, derived: DerivedFeatures | None) -> Coverage | None:
        """Return that of a bundle; None without counters and histories."""
        if derived is None or derived.clock is None:
            return None
        base = {definition(state.counter): (state.counter, state.base) for state in derived.counters.values()}
        histories = {history.name: history for history in derived.schema.histories}
        ids = {histories[name]: len(state.items.flatten()) for name, state in derived.histories.items()}
        return cls(derived.clock, base, ids)

    @classmethod
    def of_state(cls, folder: Path, schema: Schema) -> Coverage | None:
        """Return that of the folder of a state; None without counters and histories.

        Raises:
            BundleError: the state is damaged.
        """
        with as_bundle_error(folder):
            return cls.of_bundle(DerivedFeatures.open(folder, schema))

    @classmethod
    def of_version(cls, folder: Path) -> Coverage | None:
        """Return that of a published version, which is not verified; None without counters and histories.

        Raises:
            BundleError: the version is damaged.
        """
        file = folder / "manifest.json"
        with as_bundle_error(folder):
            schema = parse_schema(json.loads(read_regular(file))["schema"], file)
        return cls.of_state(folder / COUNTERS, schema)

    @classmethod
    def of_store(cls, state: StateValue, counters: Iterable[Counter], zone: str | None) -> Coverage:
        """Return that of the sums in a store, which has no histories."""
        known = {definition(counter): counter for counter in counters if definition(counter) in state.base}
        base = {key: (counter, decode_records(counter, state.base[key])) for key, counter in known.items()}
        return cls(StateClock(state.until, zone), base, {})

    def losses(self, new: Coverage) -> list[Loss]:
        """Return what another state lacks of this one, for counters and histories that both have.

        Both are compared as of the later of their times, so that windows and half-lives do not count as a loss.
        """
        now = max(self.clock.until, new.clock.until)
        pairs = [
            (new.base[key][0].name, _impressions(*old, now, self.clock), _impressions(*new.base[key], now, new.clock))
            for key, old in self.base.items()
            if key in new.base
        ]
        pairs += [(history.name, count, new.ids[history]) for history, count in self.ids.items() if history in new.ids]
        return [Loss(name, before, after) for name, before, after in pairs if after < before]


def _impressions(counter: Counter, base: Records, now: int, clock: StateClock) -> float:
    """Return the number of impressions in sums over all keys, as the counter weighs them at a time."""
    records = within_window(counter, base, now, clock.zone)
    return float(np.sum(records["count"] * decay((now - records["last"]) / MICROSECONDS, counter)))


def describe_losses(losses: Iterable[Loss]) -> str:
    """Return losses as text: impressions of counters, ids of histories."""
    return ", ".join(map(str, losses))


def require_coverage(
    old: Coverage | None, new: Coverage | None, before: str | Path, after: str | Path, *, allow: bool
) -> None:
    """Print what a new state lacks of the one that it replaces.

    Args:
        old: coverage of the state that is replaced.
        new: coverage of the new state.
        before: name of the state that is replaced.
        after: name of the new state.
        allow: whether any loss is accepted.

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
    if losses:
        print_status(f"{after} has poorer counters than {before}: {describe_losses(losses)}")
