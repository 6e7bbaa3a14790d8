"""Lookup of a request's user and items in the feature store. If the store fails, the request continues without it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from ranking.artifacts.feature_store_keys import key_prefix
from ranking.artifacts.store_address import StoreAddress
from ranking.counters.stored_sums import StoredSums
from ranking.errors import ConfigError
from ranking.schema import Owner
from service.engine.model import LoadedModel
from service.engine.request import EMPTY, RawFeatures, StoreFeatures
from service.engine.request_encoder import RequestEncoder
from service.engine.values import Values, to_list
from service.feature_store.counters import CounterLookup
from service.feature_store.decode import DEGRADING_FAULTS, Fault, ObjectDecoder
from service.feature_store.key_value_store import KeyValueStore, KeyValueStoreError
from service.protocol.messages import RankOptions, User
from service.settings import Settings
from service.telemetry.metrics import Metrics

log = logging.getLogger("ranker.service")

BREAKER_FAILURES = 5
"""Consecutive failed lookups that open the circuit breaker."""
BREAKER_SECONDS = 1.0
"""Seconds between probes while the circuit breaker is open."""
FAULT_LOG_SECONDS = 60.0
"""Minimum seconds between log lines about unusable values."""

DEGRADED = StoreFeatures(degraded=True)

Decoders = Mapping[Owner, ObjectDecoder]


def open_store(settings: Settings) -> KeyValueStore | None:
    """Create the store that the settings name, without connecting; None if ``store`` is not set.

    Raises:
        ConfigError: the address has an unknown or invalid option, or the Redis client is not installed.
    """
    if settings.store is None:
        return None
    url, seconds = settings.store.get_secret_value(), settings.store_timeout_ms / 1000
    try:
        match StoreAddress.parse(url).kind:
            case "cluster":
                from service.feature_store.redis_cluster import ClusterStore

                return ClusterStore(url, seconds)
            case "sentinel":
                from service.feature_store.redis_sentinel import SentinelStore

                return SentinelStore(url, seconds)
            case "server":
                from service.feature_store.redis import RedisStore

                return RedisStore(url, seconds)
    except ModuleNotFoundError as error:
        reason = f"RANKER_STORE needs {error.name}: pip install 'dselect-ranker[redis]'"
        raise ConfigError(reason) from None


class StoreLookup:
    """Supplies the features that requests leave out from a key-value store.

    Args:
        store: store to read.
        prefix: prefix of its keys.
        breaker: circuit breaker around the store.
        metrics: counts the fallbacks.
    """

    def __init__(self, store: KeyValueStore, prefix: str, breaker: CircuitBreaker, metrics: Metrics) -> None:
        self._store, self._prefix, self._breaker, self._metrics = store, prefix, breaker, metrics
        self._decoders: WeakKeyDictionary[RequestEncoder, Decoders] = WeakKeyDictionary()
        self._generations: dict[str, int] = {}  # of the counters that each model's last request found
        self._next_fault_log = -FAULT_LOG_SECONDS

    @classmethod
    def from_settings(cls, settings: Settings, metrics: Metrics) -> Self | None:
        """Create the lookup, or return None if ``store`` is not set. The store need not be available yet.

        Raises:
            ConfigError: the address has an unknown or invalid option.
        """
        store = open_store(settings)
        if store is None:
            return None
        breaker = CircuitBreaker(BREAKER_FAILURES, BREAKER_SECONDS)
        log.info("looking up items and users in %s, timeout %g ms", store.address, settings.store_timeout_ms)
        return cls(store, settings.store_prefix, breaker, metrics)

    async def lookup(self, model: LoadedModel, options: RankOptions, items: RawFeatures) -> StoreFeatures:
        """Look up the features of a request's user and candidates; never raise because of the store.

        Args:
            model: version that will score the request.
            options: everything but the candidates.
            items: the candidates, not validated yet.
        """
        decoders = self._decoders.get(model.encoder)
        if decoders is None:
            owners: tuple[Owner, Owner] = ("item", "user")
            decoders = {owner: ObjectDecoder(model.ranker, owner) for owner in owners}
            self._decoders[model.encoder] = decoders
        ids_to_read = _ids_to_read(decoders, options.user, items)
        counters = CounterLookup.for_request(model, options, items, self._prefix, clustered=self._store.clustered)
        generation = self._generations.get(model.name)
        counter_keys = counters.keys(generation)
        if not ids_to_read and not counter_keys:
            return EMPTY
        if not self._breaker.allows():
            self._count("breaker_open")
            return DEGRADED
        keys = []
        for owner, ids in ids_to_read.items():
            prefix = key_prefix(self._prefix, model.name, owner)
            keys += [f"{prefix}{entity_id}" for entity_id in ids]
        try:
            values = await self._store.read([*keys, *counter_keys])
            sums, undecodable = await self._counters(model.name, counters, generation, values[len(keys) :])
        except KeyValueStoreError as error:
            self._record_failure(error)
            return DEGRADED
        if self._breaker.record_success():
            log.warning("store %s is available again", self._store.address)
        features = self._decode(decoders, ids_to_read, values[: len(keys)])
        if undecodable:
            self._count("undecodable")
            self._log_faults([f"{undecodable} values of counters cannot be decoded"])
        return replace(features, sums=sums, degraded=features.degraded or undecodable > 0)

    async def close(self) -> None:
        """Close the connections to the store."""
        await self._store.close()

    async def _counters(
        self, model: str, counters: CounterLookup, generation: int | None, values: Sequence[bytes | None]
    ) -> tuple[StoredSums | None, int]:
        """Return the sums of counters, and the number of values that cannot be decoded.

        The first time and after a load, the values are read again: those of the current generation.

        Args:
            model: name of the model.
            counters: keys of the request.
            generation: generation of the values.
            values: values of ``counters.keys(generation)``.

        Raises:
            KeyValueStoreError: the store failed.
        """
        if not values:
            return None, 0
        try:
            state = counters.state(values[0])
            if state is not None and state.generation != generation:
                generation = self._generations[model] = state.generation
                values = await self._store.read(counters.keys(generation))
                state = counters.state(values[0])
        except ValueError:
            return None, 1
        if state is None or state.generation != generation:  # loaded again in between
            return None, 0
        return counters.decode(state, values[1:])

    def _decode(
        self, decoders: Decoders, ids_to_read: Mapping[Owner, Sequence[int | str]], values: list[bytes | None]
    ) -> StoreFeatures:
        columns, signatures, faults = {}, [], set[Fault]()
        start = 0
        for owner, ids in ids_to_read.items():
            decoded = decoders[owner].decode(values[start : start + len(ids)])
            start += len(ids)
            columns[owner] = decoded.columns
            signatures.append((owner, decoded.signature))
            if decoded.faults:
                faults |= decoded.faults.keys()
                self._log_faults(list(decoded.faults.values()))
        for fault in faults:
            self._count(fault)
        return StoreFeatures(columns, tuple(signatures), degraded=not DEGRADING_FAULTS.isdisjoint(faults))

    def _record_failure(self, error: KeyValueStoreError) -> None:
        self._count(error.reason)
        if self._breaker.record_failure():
            message = "store %s is unavailable (%s: %s): responses are degraded until it recovers"
            log.warning(message, self._store.address, error.reason, error)

    def _log_faults(self, messages: list[str]) -> None:
        now = time.monotonic()
        if now >= self._next_fault_log:
            self._next_fault_log = now + FAULT_LOG_SECONDS
            log.warning("store %s contains unusable values: %s", self._store.address, "; ".join(messages))

    def _count(self, reason: str) -> None:
        self._metrics.fallbacks.labels(self._store.kind, reason).inc()


def _ids_to_read(decoders: Decoders, user: User, items: RawFeatures) -> dict[Owner, Sequence[int | str]]:
    """Return the ids by owner, for owners of which the request leaves out a feature that the ranker reads."""
    ids: dict[Owner, Sequence[int | str]] = {}
    if not len(items):
        return ids
    if _is_incomplete(items.columns, decoders["item"]):
        ids["item"] = to_list(items.ids)
    if user.id is not None and any(user.features.get(column) is None for column in decoders["user"].columns):
        ids["user"] = [user.id]
    return ids


def _is_incomplete(features: Mapping[str, Values], decoder: ObjectDecoder) -> bool:
    """Whether a value of a column that the decoder reads is absent or null."""
    return any(column not in features or _has_null(features[column]) for column in decoder.columns)


def _has_null(values: Values) -> bool:
    if isinstance(values, pa.Array):
        return bool(values.null_count)
    return not isinstance(values, np.ndarray) and None in values


class CircuitBreaker:
    """Opens after consecutive failures; while it is open, allows single probes until one succeeds.

    Args:
        failures: number of consecutive failures that open the circuit breaker.
        seconds: seconds between probes while it is open.
    """

    def __init__(self, failures: int, seconds: float) -> None:
        self._max_failures, self._seconds = failures, seconds
        self._failures = 0
        self._next_probe: float | None = None  # ``time.monotonic()``; None while closed

    def allows(self) -> bool:
        """Return whether to make an attempt. While open, allows one attempt per interval, whatever its outcome."""
        if self._next_probe is None:
            return True
        now = time.monotonic()
        if now < self._next_probe:
            return False
        self._next_probe = now + self._seconds
        return True

    def record_failure(self) -> bool:
        """Record a failed attempt and return whether it opened the circuit breaker."""
        self._failures += 1
        opens = self._next_probe is None and self._failures >= self._max_failures
        if opens:
            self._next_probe = time.monotonic() + self._seconds
        return opens

    def record_success(self) -> bool:
        """Record a successful attempt and return whether it closed the circuit breaker."""
        closes = self._next_probe is not None
        self._failures, self._next_probe = 0, None
        return closes
