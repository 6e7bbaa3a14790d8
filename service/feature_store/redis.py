"""Redis as a store: one MGET a look-up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import hiredis
from redis.asyncio.connection import Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, RedisError
from redis.exceptions import ConnectionError as NoConnectionError
from redis.exceptions import TimeoutError as TooLateError

from ranking.artifacts.feature_store_keys import redact_address, unsupported_option_message
from ranking.errors import ConfigError
from service.feature_store.key_value_store import KeyValueStoreError
from service.feature_store.lag_tolerant_timeout import LagTolerantTimeout
from service.feature_store.redis_connection import PipelinedConnection

log = logging.getLogger("ranker.service")

CONNECT_SECONDS = 2.0
"""In which a connection must stand; TLS and a password take longer than a look-up may."""

HANGS_SECONDS = 1.0
"""Of silence after which a connection is given up: the other end may be gone without a word."""

OPTIONS: dict[str, Any] = {
    "protocol": 2,  # nothing of the third is needed, and it costs a round trip to ask for it
    "driver_info": None,
    "retry": Retry(NoBackoff(), 0),  # a look-up that failed has its fallback already
    "socket_timeout": None,  # ``read`` has a timeout of its own, around everything
    "socket_connect_timeout": CONNECT_SECONDS,
}


class RedisStore:
    """Reads from one Redis over one connection, within a time.

    The connection goes on being opened if whoever wanted it cannot wait: the next one finds it open.

    Args:
        url: address, see ``ranking.artifacts.feature_store_keys``.
        seconds: that a look-up may take.

    Raises:
        ConfigError: an option of the address means nothing.
    """

    kind = "redis"

    def __init__(self, url: str, seconds: float) -> None:
        self.shown, self._seconds = redact_address(url), seconds
        try:
            options: dict[str, Any] = OPTIONS | dict(parse_url(url))
            connection = options.pop("connection_class", Connection)
            connection(**options)
        except (TypeError, ValueError, RedisError):
            raise ConfigError(f"store: {unsupported_option_message(url)}") from None
        self._make = partial(connection, **options)
        self._pipeline: PipelinedConnection | None = None
        self._opening: asyncio.Task[PipelinedConnection] | None = None

    async def read(self, keys: Sequence[str]) -> list[bytes | None]:
        """The value of each key, None where there is none.

        Raises:
            KeyValueStoreError: no answer, or none in time.
        """
        command = hiredis.pack_command(("MGET", *keys))  # type: ignore[arg-type]  # its stub knows tuples of one
        try:
            async with LagTolerantTimeout(self._seconds):
                found: list[bytes | None] = await (await self._standing()).ask(command)
                return found
        except (TimeoutError, TooLateError):
            if self._pipeline is not None and self._pipeline.silent_seconds > HANGS_SECONDS:
                await self._pipeline.close()  # the next look-up opens another
            raise KeyValueStoreError("timeout", f"no answer within {self._seconds * 1000:g} ms") from None
        except (AuthenticationError, BusyLoadingError) as error:  # to redis-py they are failures of the connection
            raise KeyValueStoreError("error", str(error)) from None
        except (NoConnectionError, OSError) as error:
            raise KeyValueStoreError("unreachable", str(error)) from None
        except RedisError as error:
            raise KeyValueStoreError("error", str(error)) from None
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise KeyValueStoreError("unreachable", "the connection was given up") from None
        except Exception as error:  # a connection that is lost in mid-use has no state that its methods could rely on
            log.warning("the connection to the store %s failed", self.shown, exc_info=error)
            raise KeyValueStoreError("unreachable", type(error).__name__) from None

    async def close(self) -> None:
        """Gives the connection up."""
        if self._opening is not None:
            self._opening.cancel()
        if self._pipeline is not None:
            await self._pipeline.close()

    async def _standing(self) -> PipelinedConnection:
        """The connection, opened anew if it was lost; everybody waits for the same one."""
        if self._pipeline is not None and self._pipeline.stands:
            return self._pipeline
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        return await asyncio.shield(self._opening)

    async def _open(self) -> PipelinedConnection:
        connection = self._make()
        async with asyncio.timeout(CONNECT_SECONDS):
            await connection.connect()
        self._pipeline = PipelinedConnection(connection)
        return self._pipeline

    def _opened(self, opening: asyncio.Task[PipelinedConnection]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # nobody may be left to whom it could be told


def _is_cancelled() -> bool:
    """Whether somebody gave up what runs now; else it was something that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
