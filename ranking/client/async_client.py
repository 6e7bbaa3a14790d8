"""Client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import httpx2
import pyarrow as pa

from ranking.client.calls import (
    MODELS,
    READY,
    Call,
    Items,
    RankOptions,
    Result,
    feedback_call,
    model_call,
    rank_call,
    rank_table_call,
)
from ranking.client.errors import ConnectionFailedError, RequestTimeoutError, UnavailableError
from ranking.client.exchange import POOL, Connection, Exchange, Reply
from ranking.client.results import Accepted, ModelDetails, ModelSummary, RankedTable, Ranking


class AsyncRankingClient:
    """A client of a ranking service for asyncio, with a pool of connections that are kept open.

    One client per event loop is enough: all its tasks can share it. It must not be used from another loop, or in a
    process that was forked after its first call. Close it, or use it as an asynchronous context manager.

    Arguments, results, retries and errors are those of ``RankingClient``; the timeout is exact.

    Args:
        base_url: address of the service, such as ``https://ranker.example``.
        api_key: API key, if the service has keys.
        timeout: seconds of a call, including all its attempts and waits.
        retries: maximum number of attempts after the first.

    Raises:
        ValueError: an argument is not valid.
    """

    def __init__(self, base_url: str, api_key: str | None = None, *, timeout: float = 10.0, retries: int = 2) -> None:
        self._connection = Connection.create(base_url, api_key, timeout, retries)
        self._http = httpx2.AsyncClient(limits=POOL)

    async def rank(self, items: Items, **options: Unpack[RankOptions]) -> Ranking:
        """Rank candidates; see ``RankingClient.rank``."""
        return await self._run(rank_call(items, **options))

    async def rank_table(self, table: pa.Table, **options: Unpack[RankOptions]) -> RankedTable:
        """Rank the rows of a table; see ``RankingClient.rank_table``."""
        return await self._run(rank_table_call(table, **options))

    async def feedback(
        self, request_id: str, events: Sequence[Mapping[str, Any]], *, model: str | None = None
    ) -> Accepted:
        """Report user actions on ranked items; see ``RankingClient.feedback``."""
        return await self._run(feedback_call(request_id, events, model=model))

    async def models(self) -> list[ModelSummary]:
        """Return the models of the service; see ``RankingClient.models``."""
        return await self._run(MODELS)

    async def model(self, name: str) -> ModelDetails:
        """Return the inputs and outputs of a model; see ``RankingClient.model``."""
        return await self._run(model_call(name))

    async def ready(self) -> bool:
        """Return whether the service is ready; see ``RankingClient.ready``."""
        try:
            await self._run(READY)
        except (UnavailableError, ConnectionFailedError, RequestTimeoutError):
            return False
        return True

    async def close(self) -> None:
        """Close all connections; the client cannot be used afterwards."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, call: Call[Result]) -> Result:
        exchange = Exchange(call, self._connection)
        while True:
            try:
                reply = await self._send(exchange)
            except httpx2.RequestError as failure:
                pause = exchange.pause_after_failure(failure)
            else:
                wait = exchange.pause_after_response(reply)
                if wait is None:
                    return call.parse(reply.body)
                pause = wait
            await asyncio.sleep(pause)

    async def _send(self, exchange: Exchange[Any]) -> Reply:
        try:
            async with asyncio.timeout(exchange.time_left()):
                response = await self._http.send(exchange.request())
        except TimeoutError:
            exchange.timed_out()
        return Reply(response.status_code, response.headers, response.content)
