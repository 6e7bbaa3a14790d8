"""Connection of ``ranker counters`` to the feature store of the service."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.cluster import RedisCluster

from pipelines.feature_store.client import STORE_ERRORS, connect, store_error
from ranking.artifacts import bundle, repository
from ranking.artifacts.default_model import read_default_model
from ranking.artifacts.feature_store_keys import counter_prefix, counter_state_key
from ranking.artifacts.store_address import redact_address
from ranking.counters.features import CounterFeatures
from ranking.counters.state import StateClock
from ranking.counters.stored_sums import FIRST_TIME, LAST_TIME, StateValue, are_records, definition
from ranking.errors import OutputError, UsageError
from ranking.frozen.ranker import FrozenRanker
from ranking.schema import Counter

BATCH_SIZE = 5_000
"""Number of values per command."""
VALUE_NAME = re.compile(r"([0-9a-f]+):([a-z]+):-?[0-9a-f]+")
"""End of the key of a value, see ``counter_key``: its generation and the kind of its root."""


class CounterStore:
    """Client of the values of one model's counters.

    Args:
        url: address of the store.
        prefix: prefix of the keys of the service.
        model: name of the model.

    Attributes:
        start: start of all keys.
        state: key of the sums over all keys, which name the generation of all other sums.
        loaded: key of the sums over all keys as they were loaded.
        totals: key of the totals of the sums of all users, items and keys, see ``Totals``.
        positions: key of the hash of what was added since the load, see ``Positions``.
        forgotten: key of the hash of forgotten users.
        client: Redis client.

    Raises:
        OutputError: the store cannot be reached.
        UsageError: the address has an unsupported option.
    """

    def __init__(self, url: str, prefix: str, model: str) -> None:
        self._url = url
        self.client = connect(url)
        self.start = counter_prefix(prefix, model, clustered=isinstance(self.client, RedisCluster))
        self.state = counter_state_key(self.start)
        self.loaded, self.totals, self.positions, self.forgotten = (
            f"{self.start}{name}" for name in ("loaded", "totals", "positions", "forgotten")
        )

    @property
    def shared_keys(self) -> tuple[str, ...]:
        """All keys that are not those of one user, item or key."""
        return self.state, self.loaded, self.totals, self.positions, self.forgotten

    def loading(self, generation: int | None = None) -> str:
        """Return the key that exists while a generation is loaded, or the start of these keys."""
        return f"{self.start}loading:" if generation is None else f"{self.start}loading:{generation:x}"

    def parse_key(self, key: str) -> tuple[int, str] | None:
        """Return the generation and the kind of root of a value; None if the key is not that of a value."""
        name = VALUE_NAME.fullmatch(key.removeprefix(self.start))
        return None if name is None else (int(name[1], 16), name[2])

    @property
    def address(self) -> str:
        """Address of the store without user name and password."""
        return redact_address(self._url)

    def require_no_eviction(self) -> None:
        """Check that the store does not evict counters when its memory is full.

        Raises:
            OutputError: it may, or it cannot be reached.
        """
        with self.errors("fix the store, then try again"):
            client: Any = self.client
            if isinstance(client, RedisCluster):
                servers = list(client.info("memory", target_nodes=RedisCluster.PRIMARIES).values())
            else:
                servers = [client.info("memory")]
        for memory in servers:
            policy = str(memory.get("maxmemory_policy", ""))
            if memory.get("maxmemory") and policy.startswith("allkeys-"):
                raise OutputError(
                    f"{self.address}: evicts counters when its memory is full (maxmemory-policy is {policy}), so that "
                    "users would start again from the bundle; set it to noeviction"
                )

    @contextmanager
    def errors(self, hint: str) -> Iterator[None]:
        """Convert errors of the store to OutputError, whose message ends with the hint."""
        try:
            yield
        except STORE_ERRORS as error:
            raise store_error(self._url, error, "rejects a command or cannot be reached", hint) from None


def read_state(store: CounterStore, key: str, hint: str = "fix the store, then try again") -> StateValue | None:
    """Read the sums over all keys; None if the store has none, or damaged ones.

    Args:
        store: the store.
        key: ``state`` or ``loaded`` of the store.
        hint: end of the message of an error.

    Raises:
        OutputError: the store cannot be reached.
    """
    with store.errors(hint):
        value: Any = store.client.get(key)
    try:
        state = None if value is None else StateValue.decode(value)
    except ValueError:
        return None
    return state if state is not None and FIRST_TIME <= state.until <= LAST_TIME else None


def require_state(store: CounterStore, counters: Sequence[Counter], hint: str) -> StateValue:
    """Read the sums over all keys, which must have those of some counters.

    Raises:
        OutputError: the store cannot be reached, or holds no such sums.
    """
    state = read_state(store, store.state, hint)
    if state is None:
        raise OutputError(f"{store.address} holds no counters of this model: run 'ranker counters load' first")
    if not has_counters(state, counters):
        reason = "holds other counters than the current version, or damaged ones"
        raise OutputError(f"{store.address} {reason}: run 'ranker counters load' first")
    return state


def has_counters(state: StateValue, counters: Sequence[Counter]) -> bool:
    """Return whether a state has valid sums of some counters."""
    sections = {counter: state.base.get(definition(counter)) for counter in counters}
    return all(data is not None and are_records(counter, [data]) for counter, data in sections.items())


def scan_keys(store: CounterStore) -> Iterator[list[str]]:
    """Yield all keys of a store in batches; a key that changes meanwhile may come twice."""
    start = "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in store.start)
    keys: list[str] = []
    for key in store.client.scan_iter(match=f"{start}*", count=BATCH_SIZE):
        keys.append(key.decode())
        if len(keys) == BATCH_SIZE:
            yield keys
            keys = []
    yield keys


@dataclass(frozen=True)
class ServedCounters:
    """The current version of a model with counters.

    Attributes:
        name: name of the model.
        version: the version.
        ranker: its ranker.
        counter_features: state of its counters and histories.
        clock: time of the state.
    """

    name: str
    version: int
    ranker: FrozenRanker
    counter_features: CounterFeatures
    clock: StateClock


def load_served(path: Path, model: str | None) -> ServedCounters:
    """Load the current version of a model with its state.

    Args:
        path: the repository.
        model: name of the model; default: the default model of the repository.

    Raises:
        BundleError: the model does not exist or cannot be read.
        UsageError: the model has no counters.
    """
    names = repository.list_models(path)
    name = model or read_default_model(path) or (names[0] if names else None)
    if name is None or name not in names:
        raise UsageError(f"{path} has no model '{name}': it has {', '.join(names) or 'none'}")
    version = repository.read_release(path, name).version
    ranker = bundle.load(repository.bundle_folder(path, name, version))
    counter_features = ranker.counter_features
    if counter_features is None or counter_features.clock is None or not ranker.schema.counters:
        raise UsageError(f"version {version} of {name} has no counters: declare [[counters]] and train it again")
    return ServedCounters(name, version, ranker, counter_features, counter_features.clock)
