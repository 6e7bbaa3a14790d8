"""The look-up that the settings ask for."""

from __future__ import annotations

import logging

from service.feature_store.circuit_breaker import CircuitBreaker
from service.feature_store.lookup import StoreLookup
from service.feature_store.redis import RedisStore
from service.settings import Settings
from service.telemetry.metrics import Metrics

log = logging.getLogger("ranker.service")


def open_feature_store(settings: Settings, metrics: Metrics) -> StoreLookup | None:
    """The look-up into the store, None if none is set. It need not be there yet: requests do without until it is.

    Raises:
        ConfigError: its address has options that mean nothing.
    """
    store = open_store(settings)
    if store is None:
        return None
    breaker = CircuitBreaker(settings.store_breaker_failures, settings.store_breaker_seconds)
    log.info("items and users are looked up in %s, within %g ms", store.shown, settings.store_timeout_ms)
    return StoreLookup(store, settings.store_prefix, breaker, metrics)


def open_store(settings: Settings) -> RedisStore | None:
    """The store, None if none is set; nothing is connected yet.

    Raises:
        ConfigError: its address has options that mean nothing.
    """
    if settings.store is None:
        return None
    return RedisStore(settings.store.get_secret_value(), settings.store_timeout_ms / 1000)
