"""Redis as a key-value store: one MGET per lookup."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import hiredis
from redis.asyncio.connection import Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ranking.artifacts.feature_store_keys import redact_address, unsupported_option_message
from ranking.errors import ConfigError
from service.feature_store.key_value_store import KeyValueStoreError
from service.feature_store.lag_tolerant_timeout import LagTolerantTimeout
from service.feature_store.redis_connection import PipelinedConnection
from service.settings import Settings

log = logging.getLogger("ranker.service")

CONNECT_SECONDS = 2.0
"""Time limit for connecting. TLS and authentication take longer than a lookup may."""

MAX_SILENT_SECONDS = 1.0
"""Seconds without a response after which a connection is closed: the server may be gone without closing it."""

OPTIONS: dict[str, Any] = {
    "protocol": 2,  # RESP3 is not needed and costs a round trip
    "driver_info": None,
    "retry": Retry(NoBackoff(), 0),  # a failed lookup already has a fallback
    "socket_timeout": None,  # ``read`` has its own timeout
    "socket_connect_timeout": CONNECT_SECONDS,
}


class RedisStore:
    """Reads from one Redis server over one connection, with a timeout.

    Connecting continues in the background if the lookup that started it times out.

    Args:
        url: Address, see ``ranking.artifacts.feature_store_keys``.
        seconds: Time limit of a lookup.

    Raises:
        ConfigError: The address has an unknown or invalid option.
    """

    kind = "redis"

    def __init__(self, url: str, seconds: float) -> None:
        self.address, self._seconds = redact_address(url), seconds
        try:
            options: dict[str, Any] = OPTIONS | dict(parse_url(url))
            connection_class = options.pop("connection_class", Connection)
            connection_class(**options)
        except (TypeError, ValueError, RedisError):
            raise ConfigError(f"store: {unsupported_option_message(url)}") from None
        self._create_connection = partial(connection_class, **options)
        self._connection: PipelinedConnection | None = None
        self._connecting: asyncio.Task[PipelinedConnection] | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> Self | None:
        """Create the store without connecting, or return None if ``store`` is not set.

        Raises:
            ConfigError: The address has an unknown or invalid option.
        """
        if settings.store is None:
            return None
        return cls(settings.store.get_secret_value(), settings.store_timeout_ms / 1000)

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read the value of each key, None for keys that do not exist.

        Raises:
            KeyValueStoreError: The store did not answer in time, or not at all.
        """
        command = hiredis.pack_command(("MGET", *keys))  # type: ignore[arg-type]  # the stub only allows 1-tuples
        try:
            async with LagTolerantTimeout(self._seconds):
                connection = await self._get_connection()
                values: list[bytes | None] = await connection.execute(command)
                return values
        except (TimeoutError, RedisTimeoutError):
            if self._connection is not None and self._connection.silent_seconds > MAX_SILENT_SECONDS:
                await self._connection.close()  # the next lookup reconnects
            raise KeyValueStoreError("timeout", f"no answer within {self._seconds * 1000:g} ms") from None
        except (AuthenticationError, BusyLoadingError) as error:  # subclasses of RedisConnectionError
            raise KeyValueStoreError("error", str(error)) from None
        except (RedisConnectionError, OSError) as error:
            raise KeyValueStoreError("unreachable", str(error)) from None
        except RedisError as error:
            raise KeyValueStoreError("error", str(error)) from None
        except asyncio.CancelledError:
            if _current_task_is_cancelled():
                raise
            raise KeyValueStoreError("unreachable", "the connection was closed") from None
        except Exception as error:  # methods of redis-py's connection may fail in any way once it is lost
            log.warning("the connection to the store %s failed", self.address, exc_info=error)
            raise KeyValueStoreError("unreachable", type(error).__name__) from None

    async def close(self) -> None:
        """Close the connection."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            await self._connection.close()

    async def _get_connection(self) -> PipelinedConnection:
        """Return the open connection, reconnecting if necessary. Concurrent lookups share one attempt."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._finish_connecting)
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> PipelinedConnection:
        connection = self._create_connection()
        async with asyncio.timeout(CONNECT_SECONDS):
            await connection.connect()
        self._connection = PipelinedConnection(connection)
        return self._connection

    def _finish_connecting(self, task: asyncio.Task[PipelinedConnection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # mark as retrieved: all lookups may have timed out already


def _current_task_is_cancelled() -> bool:
    """Whether the current task was cancelled, as opposed to a task that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
