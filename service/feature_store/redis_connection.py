"""One connection to Redis, on which commands follow each other without waiting for each other's answers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from copy import copy
from typing import Any

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as NoConnectionError
from redis.exceptions import RedisError, ResponseError


class PipelinedConnection:
    """Answers come in the order of the commands; one that nobody waits for any more is dropped when it comes.

    redis-py's pool keeps a connection for each command under way, and takes longer to hand it out than Redis to answer.

    Args:
        connection: that stands; belongs to the pipeline from now on.
    """

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._silent_since = 0.0
        self._reading = asyncio.create_task(self._read())

    @property
    def stands(self) -> bool:
        """Whether it can be used."""
        return not self._reading.done()

    @property
    def silent_seconds(self) -> float:
        """For how long no answer came although one is awaited, by whomever; 0 if none is."""
        return time.monotonic() - self._silent_since if self._waiting else 0.0

    async def ask(self, command: bytes) -> Any:
        """The answer to a packed command.

        Raises:
            RedisError: Redis refuses, or the connection is lost.
        """
        answer = asyncio.get_running_loop().create_future()
        if not self._waiting:
            self._silent_since = time.monotonic()
        self._waiting.append(answer)
        await self._connection.send_packed_command(command, check_health=False)  # is written before anything is awaited
        return await answer

    async def close(self) -> None:
        """Gives the connection up; who waits is told that it is lost."""
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        """Hands answers to who waits for them until the connection is lost."""
        lost: RedisError = NoConnectionError("the connection was given up")
        try:
            while True:
                try:
                    found = await self._connection.read_response()
                except ResponseError as refusal:
                    found = refusal
                self._silent_since = time.monotonic()
                _hand(self._waiting.popleft(), found)
        except RedisError as error:
            lost = error
        except OSError as error:
            lost = NoConnectionError(str(error))
        except IndexError:
            lost = NoConnectionError("Redis answered what nobody had asked")
        finally:
            await self._connection.disconnect(nowait=True)
            while self._waiting:
                _hand(self._waiting.popleft(), copy(lost))  # one raised in several tasks would gather all tracebacks


def _hand(answer: asyncio.Future[Any], found: Any) -> None:
    if answer.done():  # cancelled: too late
        return
    if isinstance(found, RedisError):
        answer.set_exception(found)
    else:
        answer.set_result(found)
