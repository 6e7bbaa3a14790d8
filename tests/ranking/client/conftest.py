"""A service in a thread, and clients of both kinds that tests call alike."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ranking.client import AsyncRankingClient, RankingClient
from tests.support.ports import HOST
from tests.support.server_thread import server_thread

OpenClient = Callable[..., Any]


class BlockingClient:
    """``AsyncRankingClient`` whose methods run in an event loop until they return."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncRankingClient(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        assert inspect.iscoroutinefunction(method)
        return lambda *args, **kwargs: self._loop.run_until_complete(method(*args, **kwargs))

    def __enter__(self) -> BlockingClient:
        self._loop.run_until_complete(self._client.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run_until_complete(self._client.__aexit__(*error))
        self._loop.close()


@pytest.fixture(params=[RankingClient, BlockingClient], ids=["sync", "async"])
def open_client(request: pytest.FixtureRequest) -> Iterator[OpenClient]:
    """Function with the arguments of a client that opens one until the test ends."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(request.param(*args, **kwargs))


@pytest.fixture(scope="package")
def url(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a service with feedback."""
    with server_thread(repository, feedback_dir=tmp_path_factory.mktemp("feedback"), max_candidates=100) as port:
        yield f"http://{HOST}:{port}"


@pytest.fixture
def client(open_client: OpenClient, url: str) -> Any:
    return open_client(url)
