"""One connection to a Redis server that all lookups of a process share."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

CONNECT_SECONDS = 2.0
"""Time limit for connecting. TLS and authentication take longer than a lookup may."""

MAX_SILENT_SECONDS = 1.0
"""Seconds without a response after which a connection is closed: the server may be gone without closing it."""


class ReconnectingConnection:
    """Opens a connection when a command needs one. Concurrent commands share one attempt.

    Connecting continues in the background if the command that started it is cancelled.

    Args:
        create: returns a connection that is not open yet; called for each attempt.
    """

    def __init__(self, create: Callable[[], Awaitable[AbstractConnection]]) -> None:
        self._create = create
        self._connection: PipelinedConnection | None = None
        self._connecting: asyncio.Task[PipelinedConnection] | None = None

    async def get(self) -> PipelinedConnection:
        """Return the open connection, reconnecting if necessary.

        Raises:
            OSError, RedisError, TimeoutError: The server cannot be reached or rejects the connection.
        """
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._finish_connecting)
        return await asyncio.shield(self._connecting)

    async def close_if_silent(self) -> None:
        """Close the connection if the server has not responded for ``MAX_SILENT_SECONDS``; ``get`` reconnects."""
        if self._connection is not None and self._connection.silent_seconds > MAX_SILENT_SECONDS:
            await self._connection.close()

    async def close(self) -> None:
        """Close the connection."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            await self._connection.close()

    async def _connect(self) -> PipelinedConnection:
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await self._create()
            await connection.connect()
        self._connection = PipelinedConnection(connection)
        return self._connection

    def _finish_connecting(self, task: asyncio.Task[PipelinedConnection]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # mark as retrieved: all lookups may have timed out already


class PipelinedConnection:
    """Matches responses to commands by their order. The responses of cancelled commands are discarded.

    redis-py's pool needs one connection per concurrent command, and takes longer to acquire one than Redis to respond.

    Args:
        connection: open connection; this object takes ownership of it.
    """

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._pending: deque[PendingBatch] = deque()
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
        (response,) = await self.execute_all(command, 1)
        if isinstance(response, RedisError):
            raise response
        return response

    async def execute_all(self, commands: bytes, count: int) -> list[Any]:
        """Send packed commands and return their responses; that of a rejected command is a ``RedisError``.

        Args:
            commands: packed commands, one after the other.
            count: number of commands, at least 1.

        Raises:
            RedisError: the connection is lost.
        """
        batch = PendingBatch(asyncio.get_running_loop().create_future(), count)
        if not self._pending:
            self._silent_since = time.monotonic()
        self._pending.append(batch)
        # The commands are written before the first suspension point, so that writes have the order of ``_pending``.
        try:
            await self._connection.send_packed_command(commands, check_health=False)
        except BaseException as error:
            batch.responses.cancel()  # nobody awaits them
            if isinstance(error, RuntimeError):  # of uvloop: the connection is lost, and the reader has not noticed yet
                raise RedisConnectionError(str(error)) from None
            raise
        return await batch.responses

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
                if self._pending[0].add(result):
                    self._pending.popleft()
        except RedisError as error:
            failure = error
        except OSError as error:
            failure = RedisConnectionError(str(error))
        except IndexError:
            failure = RedisConnectionError("Redis sent an unexpected response")
        finally:
            await self._connection.disconnect(nowait=True)
            while self._pending:
                self._pending.popleft().fail(copy(failure))  # a shared exception would collect all tracebacks


class PendingBatch:
    """Commands that were sent together and whose responses are not complete.

    Args:
        responses: future of the responses, which may be cancelled.
        count: number of commands.
    """

    __slots__ = ("_count", "_received", "responses")

    def __init__(self, responses: asyncio.Future[list[Any]], count: int) -> None:
        self.responses, self._count = responses, count
        self._received: list[Any] = []

    def add(self, response: Any) -> bool:
        """Add the next response, and return whether the batch is complete."""
        self._received.append(response)
        complete = len(self._received) == self._count
        if complete and not self.responses.done():
            self.responses.set_result(self._received)
        return complete

    def fail(self, error: RedisError) -> None:
        """End the batch without its missing responses."""
        if not self.responses.done():
            self.responses.set_exception(error)
