"""Pipelined connection to Redis: commands are sent without waiting for earlier responses."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from copy import copy
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError


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
