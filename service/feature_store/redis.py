"""Redis as a key-value store: one MGET per lookup."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisClusterException, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ranking.artifacts.store_address import redact_address, unsupported_option_message
from ranking.errors import ConfigError
from service.feature_store.key_value_store import KeyValueStoreError
from service.feature_store.lag_tolerant_timeout import LagTolerantTimeout
from service.feature_store.pipelined_connection import CONNECT_SECONDS, ReconnectingConnection

log = logging.getLogger("ranker.service")

OPTIONS: dict[str, Any] = {
    "protocol": 2,  # RESP3 is not needed and costs a round trip
    "driver_info": None,
    "retry": Retry(NoBackoff(), 0),  # a failed lookup already has a fallback
    "socket_timeout": None,  # ``read`` has its own timeout
    "socket_connect_timeout": CONNECT_SECONDS,
}


class BaseRedisStore(ABC):
    """Reads with a timeout, and converts the errors of redis-py.

    Args:
        url: address, see ``ranking.artifacts.store_address``.
        seconds: time limit of a lookup.
    """

    kind = "redis"
    clustered = False

    def __init__(self, url: str, seconds: float) -> None:
        self.address, self._seconds = redact_address(url), seconds

    @property
    @abstractmethod
    def _connections(self) -> Iterable[ReconnectingConnection]:
        """Connections to all servers."""

    @abstractmethod
    async def _read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read the value of each key, None for keys that do not exist, or fail with any error of redis-py."""

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read the value of each key, None for keys that do not exist.

        Raises:
            KeyValueStoreError: the store did not answer in time, or not at all.
        """
        try:
            async with LagTolerantTimeout(self._seconds):
                return await self._read(keys)
        except (TimeoutError, RedisTimeoutError):
            for connection in list(self._connections):
                await connection.close_if_silent()
            raise KeyValueStoreError("timeout", f"no answer within {self._seconds * 1000:g} ms") from None
        except (AuthenticationError, BusyLoadingError) as error:  # subclasses of RedisConnectionError
            raise KeyValueStoreError("error", str(error)) from None
        except (RedisConnectionError, RedisClusterException, OSError) as error:
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
        """Close the connections."""
        for connection in list(self._connections):
            await connection.close()


class SingleServerStore(BaseRedisStore):
    """Reads from one server at a time, over one connection.

    Args:
        url: address, see ``ranking.artifacts.store_address``.
        seconds: time limit of a lookup.
        create: returns a connection to the server that is not open yet; called for each attempt to connect.
    """

    def __init__(self, url: str, seconds: float, create: Callable[[], Awaitable[AbstractConnection]]) -> None:
        super().__init__(url, seconds)
        self._connection = ReconnectingConnection(create)

    @property
    def _connections(self) -> Iterable[ReconnectingConnection]:
        return [self._connection]

    async def _read(self, keys: Sequence[str]) -> list[bytes | None]:
        connection = await self._connection.get()
        command = hiredis.pack_command(("MGET", *keys))  # type: ignore[arg-type]  # the stub only allows 1-tuples
        values: list[bytes | None] = await connection.execute(command)
        return values


class RedisStore(SingleServerStore):
    """Reads from the server at the address.

    Args:
        url: address of the form ``redis://``, ``rediss://`` or ``unix://``.
        seconds: time limit of a lookup.

    Raises:
        ConfigError: the address has an unknown or invalid option.
    """

    def __init__(self, url: str, seconds: float) -> None:
        connection_class, options = connection_options(url, url)

        async def create() -> AbstractConnection:
            return connection_class(**options)

        super().__init__(url, seconds, create)


def connection_options(server_url: str, url: str) -> tuple[Callable[..., AbstractConnection], dict[str, Any]]:
    """Return the class and the options of connections to a server.

    Args:
        server_url: address of the server.
        url: address of the store, for the message.

    Raises:
        ConfigError: the address has an unknown or invalid option.
    """
    try:
        options: dict[str, Any] = OPTIONS | dict(parse_url(server_url))
        connection_class = options.pop("connection_class", Connection)
        connection_class(**options)
    except (TypeError, ValueError, RedisError):
        raise ConfigError(f"store: {unsupported_option_message(url)}") from None
    return connection_class, options


def _current_task_is_cancelled() -> bool:
    """Whether the current task was cancelled, as opposed to a task that it awaits."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
