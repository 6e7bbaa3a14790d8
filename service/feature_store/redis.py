"""Redis as a key-value store: one MGET per lookup."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from copy import copy
from functools import partial
from types import TracebackType
from typing import Any, Self

import hiredis
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ranking.artifacts.feature_store_keys import redact_address, unsupported_option_message
from ranking.errors import ConfigError
from service.feature_store.key_value_store import KeyValueStoreError

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


class PipelinedConnection:
    """Matches responses to commands by their order. The response of a cancelled command is discarded.

    redis-py's pool needs one connection per concurrent command, and takes longer to acquire one than Redis to respond.

    Args:
        connection: Open connection; this object takes ownership of it.
    """

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._silent_since = 0.0
        self._reader = asyncio.create_task(self._read_responses())

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return not self._reader.done()

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last response while at least one is pending, cancelled or not; otherwise 0."""
        return time.monotonic() - self._silent_since if self._pending else 0.0

    async def execute(self, command: bytes) -> Any:
        """Send a packed command and return its response.

        Raises:
            RedisError: Redis rejects the command, or the connection is lost.
        """
        response = asyncio.get_running_loop().create_future()
        if not self._pending:
            self._silent_since = time.monotonic()
        self._pending.append(response)
        # The command is written before the first suspension point, so that writes have the order of ``_pending``.
        await self._connection.send_packed_command(command, check_health=False)
        return await response

    async def close(self) -> None:
        """Close the connection; pending commands fail with a connection error."""
        self._reader.cancel()
        await asyncio.wait([self._reader])

    async def _read_responses(self) -> None:
        """Deliver responses until the connection is lost or closed."""
        failure: RedisError = RedisConnectionError("the connection was closed")
        try:
            while True:
                try:
                    result = await self._connection.read_response()
                except ResponseError as error:
                    result = error
                self._silent_since = time.monotonic()
                _deliver(self._pending.popleft(), result)
        except RedisError as error:
            failure = error
        except OSError as error:
            failure = RedisConnectionError(str(error))
        except IndexError:
            failure = RedisConnectionError("Redis sent an unexpected response")
        finally:
            await self._connection.disconnect(nowait=True)
            while self._pending:
                _deliver(self._pending.popleft(), copy(failure))  # a shared exception would collect all tracebacks


def _deliver(response: asyncio.Future[Any], result: Any) -> None:
    if response.done():  # the command was cancelled
        return
    if isinstance(result, RedisError):
        response.set_exception(result)
    else:
        response.set_result(result)


MAX_LAG_SECONDS = 0.002
"""Delay up to which the event loop counts as punctual. uvloop's clock has a resolution of one millisecond."""
MAX_EXTENSIONS = 3
"""Maximum number of extensions, so that a permanently delayed event loop does not wait indefinitely."""


class LagTolerantTimeout:
    """Like ``asyncio.timeout``, but extended when the event loop itself was delayed: the answer may have arrived.

    Otherwise a busy process would mistake its own delay for a slow store, and open the circuit breaker.

    Args:
        seconds: Time limit of the enclosed block.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self._schedule(self._seconds, MAX_EXTENSIONS)
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        await self._timeout.__aexit__(error_type, error, traceback)

    def _schedule(self, seconds: float, extensions: int) -> None:
        due = self._loop.time() + seconds
        self._timer = self._loop.call_at(due, self._expire, due, extensions)

    def _expire(self, due: float, extensions: int) -> None:
        lag = self._loop.time() - due
        if extensions and lag > MAX_LAG_SECONDS:
            self._schedule(min(lag, self._seconds), extensions - 1)
        else:
            self._timeout.reschedule(self._loop.time())
