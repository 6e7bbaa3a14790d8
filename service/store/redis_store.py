"""Redis as a store: one MGET a look-up, over connections that stay open."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import hiredis
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError
from redis.exceptions import ConnectionError as NoConnectionError
from redis.exceptions import TimeoutError as TooLateError

from ranking.errors import ConfigError
from ranking.shared_store import meaningless, shown
from service.store.base import StoreError

CONNECT_SECONDS = 2.0
"""In which a connection must stand; TLS and a password take longer than a look-up may."""

OPTIONS: dict[str, Any] = {
    "protocol": 2,  # nothing of the third is needed, and it costs a round trip to ask for it
    "driver_info": None,
    "retry": Retry(NoBackoff(), 0),  # a look-up that failed has its fallback already
    "socket_timeout": None,  # ``read`` has a timeout of its own, around everything
    "socket_connect_timeout": CONNECT_SECONDS,
}


class RedisStore:
    """Reads from one Redis, within a time.

    A connection of its own for each look-up under way, because redis-py's pool takes twice as long as Redis does. They
    are opened one at a time, and go on being opened if whoever wanted one cannot wait: the next one finds it open.

    Args:
        url: address, see ``ranking.shared_store``.
        seconds: that a look-up may take.

    Raises:
        ConfigError: an option of the address means nothing.
    """

    kind = "redis"

    def __init__(self, url: str, seconds: float) -> None:
        self.shown, self._seconds = shown(url), seconds
        try:
            options: dict[str, Any] = OPTIONS | dict(parse_url(url))
            connection = options.pop("connection_class", Connection)
            connection(**options)
        except (TypeError, ValueError, RedisError):
            raise ConfigError(f"store: {meaningless(url)}") from None
        self._make = partial(connection, **options)
        self._idle: list[AbstractConnection] = []
        self._opening: asyncio.Task[None] | None = None

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """The value of each key, None where there is none.

        Raises:
            StoreError: no answer, or none in time.
        """
        command = hiredis.pack_command(("MGET", *keys))  # type: ignore[arg-type]  # its stub knows tuples of one
        try:
            async with asyncio.timeout(self._seconds):
                return await self._answer(command)
        except (TimeoutError, TooLateError):
            await self._drop_idle()  # where one connection hangs, the others do
            raise StoreError("timeout", f"no answer within {self._seconds * 1000:g} ms") from None
        except (AuthenticationError, BusyLoadingError) as error:  # to redis-py they are failures of the connection
            raise StoreError("error", str(error)) from None
        except (NoConnectionError, OSError) as error:
            await self._drop_idle()
            raise StoreError("unreachable", str(error)) from None
        except RedisError as error:
            raise StoreError("error", str(error)) from None

    async def close(self) -> None:
        """Gives its connections up."""
        if self._opening is not None:
            self._opening.cancel()
        await self._drop_idle()

    async def _answer(self, command: bytes) -> list[bytes | None]:
        connection = await self._connection()
        try:
            await connection.send_packed_command(command, check_health=False)
            answer: list[bytes | None] = await connection.read_response()
            return answer
        finally:
            if connection.is_connected:  # redis-py closes one from which an answer may still come
                self._idle.append(connection)

    async def _connection(self) -> AbstractConnection:
        """One that nobody uses: the last used, or a new one."""
        while True:
            while self._idle:
                connection = self._idle.pop()
                if not await connection.can_read():
                    return connection
                await connection.disconnect(nowait=True)  # the server closed it
            if self._opening is None:
                self._opening = asyncio.create_task(self._open())
                self._opening.add_done_callback(self._opened)
            await asyncio.shield(self._opening)

    async def _open(self) -> None:
        connection = self._make()
        async with asyncio.timeout(CONNECT_SECONDS):
            await connection.connect()
        self._idle.append(connection)

    def _opened(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # nobody may be left to whom it could be told

    async def _drop_idle(self) -> None:
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)
