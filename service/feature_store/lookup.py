"""A request's user and items → what the store has of them; whatever goes wrong there, the request goes on without."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from ranking.artifacts.feature_store_keys import key_prefix
from ranking.schema import Owner
from service.engine.model import LoadedModel
from service.engine.request import EMPTY, StoreFeatures
from service.engine.request_encoder import RequestEncoder
from service.engine.validation import ParsedRequest
from service.engine.values import Values, to_list
from service.feature_store.circuit_breaker import CircuitBreaker
from service.feature_store.decode import LOST, Fault, Reader
from service.feature_store.key_value_store import KeyValueStore, KeyValueStoreError
from service.telemetry.metrics import Metrics

log = logging.getLogger("ranker.service")

QUIET_SECONDS = 60.0
"""From one line about what a store holds to the next."""

DEGRADED = StoreFeatures(degraded=True)

Readers = Mapping[Owner, Reader]


class StoreLookup:
    """Looks up in a store what requests leave out.

    Args:
        store: where.
        prefix: of its keys.
        breaker: that leaves a store alone that does not answer.
        metrics: where fallbacks are counted.
    """

    def __init__(self, store: KeyValueStore, prefix: str, breaker: CircuitBreaker, metrics: Metrics) -> None:
        self._store, self._prefix, self._breaker, self._metrics = store, prefix, breaker, metrics
        self._readers: WeakKeyDictionary[RequestEncoder, Readers] = WeakKeyDictionary()
        self._quiet_until = -QUIET_SECONDS

    async def lookup(self, model: LoadedModel, request: ParsedRequest) -> StoreFeatures:
        """What the store has for a request; never raises because of the store.

        Args:
            model: version that will score the request.
            request: parsed request, not validated yet.
        """
        readers = self._readers.get(model.encoder)
        if readers is None:
            owners: tuple[Owner, Owner] = ("item", "user")
            readers = self._readers[model.encoder] = {owner: Reader(model.ranker, owner) for owner in owners}
        wanted = _wanted(readers, request)
        if not wanted:
            return EMPTY
        if not self._breaker.allows():
            self._count("breaker_open")
            return DEGRADED
        keys = []
        for owner, ids in wanted.items():
            begin = key_prefix(self._prefix, model.name, owner)
            keys += [f"{begin}{each}" for each in ids]
        try:
            values = await self._store.read(keys)
        except KeyValueStoreError as error:
            self._failed(error)
            return DEGRADED
        if self._breaker.succeeded():
            log.warning("the store %s answers again", self._store.shown)
        return self._read(readers, wanted, values)

    async def close(self) -> None:
        """Gives the store's connections up."""
        await self._store.close()

    def _read(
        self, readers: Readers, wanted: Mapping[Owner, Sequence[int | str]], values: list[bytes | None]
    ) -> StoreFeatures:
        columns, forms, faults = {}, [], set[Fault]()
        start = 0
        for owner, ids in wanted.items():
            documents = readers[owner].read(values[start : start + len(ids)])
            start += len(ids)
            columns[owner] = documents.columns
            forms.append((owner, documents.form))
            if documents.faults:
                faults |= documents.faults.keys()
                self._tell(list(documents.faults.values()))
        for fault in faults:
            self._count(fault)
        return StoreFeatures(columns, tuple(forms), degraded=not LOST.isdisjoint(faults))

    def _failed(self, error: KeyValueStoreError) -> None:
        self._count(error.reason)
        if self._breaker.failed():
            log.warning(
                "the store %s fails (%s: %s): answers are degraded until it answers again",
                self._store.shown,
                error.reason,
                error,
            )

    def _tell(self, faults: list[str]) -> None:
        now = time.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET_SECONDS
            log.warning("the store %s holds what cannot be used: %s", self._store.shown, "; ".join(faults))

    def _count(self, reason: str) -> None:
        self._metrics.fallbacks.labels(self._store.kind, reason).inc()


def _wanted(readers: Readers, asked: ParsedRequest) -> dict[Owner, Sequence[int | str]]:
    """Ids of each owner of whom the request leaves out something that is read."""
    user, candidates = asked.options.user, asked.candidates
    wanted: dict[Owner, Sequence[int | str]] = {}
    if not len(candidates):
        return wanted
    if _leaves_out(candidates.features, readers["item"]):
        wanted["item"] = to_list(candidates.ids)
    if user.id is not None and any(user.features.get(column) is None for column in readers["user"].columns):
        wanted["user"] = [user.id]
    return wanted


def _leaves_out(given: Mapping[str, Values], reader: Reader) -> bool:
    """Whether a value of a column is not given that the reader reads."""
    return any(column not in given or _has_null(given[column]) for column in reader.columns)


def _has_null(values: Values) -> bool:
    if isinstance(values, pa.Array):
        return bool(values.null_count)
    return not isinstance(values, np.ndarray) and None in values
