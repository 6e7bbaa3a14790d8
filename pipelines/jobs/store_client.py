"""Connection of commands to the Redis feature store of the service."""

from __future__ import annotations

import redis

from pipelines.config.uri import single_line
from ranking.artifacts.feature_store_keys import redact_address, unsupported_option_message
from ranking.errors import OutputError, UsageError

TIMEOUT_SECONDS = 30.0
"""Timeout of connecting and of each response in seconds."""


def connect(url: str) -> redis.Redis:
    """Connect to a store.

    Raises:
        OutputError: the store cannot be reached.
        UsageError: the address has an unsupported option.
    """
    try:
        client = redis.Redis.from_url(
            url, protocol=2, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS
        )
        client.connection_pool.make_connection()
    except (TypeError, ValueError, redis.RedisError):
        raise UsageError(unsupported_option_message(url)) from None
    try:
        client.ping()
    except redis.RedisError as error:
        raise OutputError(
            f"{redact_address(url)}: cannot be reached ({single_line(error)}); "
            "check the address, the password and the network"
        ) from None
    return client
