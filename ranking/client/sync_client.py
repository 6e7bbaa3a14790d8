"""Client that blocks the calling thread."""

from __future__ import annotations

import time
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


class RankingClient:
    """A client of a ranking service, with a pool of connections that are kept open.

    One client per process is enough: all threads can share it. Create it after a fork, because processes must not share
    connections. Close it, or use it as a context manager.

    Ranking changes nothing, so that it is retried after 429, 503 and broken connections. Feedback is retried after 429
    and if no connection could be opened; if all its events have a ``time``, it is retried like ranking. Other errors
    are not retried. The client waits for ``Retry-After`` seconds, else for a random time whose bound doubles with each
    attempt.

    Args:
        base_url: address of the service, such as ``https://ranker.example``.
        api_key: API key, if the service has keys.
        timeout: seconds of a call, including all its attempts and waits. A response that arrives in pieces may exceed
            it by the time between two pieces.
        retries: maximum number of attempts after the first.

    Raises:
        ValueError: an argument is not valid.
    """

    def __init__(self, base_url: str, api_key: str | None = None, *, timeout: float = 10.0, retries: int = 2) -> None:
        self._connection = Connection.create(base_url, api_key, timeout, retries)
        self._http = httpx2.Client(limits=POOL)

    def rank(self, items: Items, **options: Unpack[RankOptions]) -> Ranking:
        """Rank candidates.

        Args:
            items: ids; rows ``{"id": …, "features": {…}}``; or columns ``{"id": […], "features": {NAME: […]}}``.
            **options: see ``RankOptions``.

        Raises:
            RankingError: the request failed; each subclass is one cause.
        """
        return self._run(rank_call(items, **options))

    def rank_table(self, table: pa.Table, **options: Unpack[RankOptions]) -> RankedTable:
        """Rank the rows of a table, and return a table.

        Args:
            table: column of ids and columns of features, with the names of the log.
            **options: see ``RankOptions``.

        Raises:
            RankingError: the request failed; each subclass is one cause.
        """
        return self._run(rank_table_call(table, **options))

    def feedback(self, request_id: str, events: Sequence[Mapping[str, Any]], *, model: str | None = None) -> Accepted:
        """Report user actions on ranked items.

        Args:
            request_id: ``request_id`` of the ranking.
            events: ``{"item": id, "labels": {NAME: number}, "time": datetime}``; ``time`` is optional.
            model: ``model`` of the ranking, which determines the valid labels.

        Raises:
            RankingError: the request failed; each subclass is one cause.
        """
        return self._run(feedback_call(request_id, events, model=model))

    def models(self) -> list[ModelSummary]:
        """Return the models of the service, sorted by name.

        Raises:
            RankingError: the request failed; each subclass is one cause.
        """
        return self._run(MODELS)

    def model(self, name: str) -> ModelDetails:
        """Return the inputs and outputs of a model.

        Raises:
            RankingError: the request failed; each subclass is one cause.
        """
        return self._run(model_call(name))

    def ready(self) -> bool:
        """Return whether the service can be reached and its models are loaded; does not retry.

        Raises:
            RankingError: the address is not that of a service.
        """
        try:
            self._run(READY)
        except (UnavailableError, ConnectionFailedError, RequestTimeoutError):
            return False
        return True

    def close(self) -> None:
        """Close all connections; the client cannot be used afterwards."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Call[Result]) -> Result:
        exchange = Exchange(call, self._connection)
        while True:
            try:
                reply = self._send(exchange)
            except httpx2.RequestError as failure:
                pause = exchange.pause_after_failure(failure)
            else:
                wait = exchange.pause_after_response(reply)
                if wait is None:
                    return call.parse(reply.body)
                pause = wait
            time.sleep(pause)

    def _send(self, exchange: Exchange[Any]) -> Reply:
        """Send one attempt; a response that arrives in pieces is abandoned when the timeout passes."""
        response = self._http.send(exchange.request(), stream=True)
        try:
            pieces = []
            for piece in response.iter_bytes():
                exchange.check_time()
                pieces.append(piece)
        finally:
            response.close()
        return Reply(response.status_code, response.headers, b"".join(pieces))
