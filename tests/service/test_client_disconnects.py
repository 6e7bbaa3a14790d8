"""A client that hangs up while its request waits, on a real server."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from pipelines.jobs.demo import post
from service.app import create_app
from service.engine import engine, scoring
from service.server.protocol import LimitedHttpProtocol
from service.settings import Settings

SECONDS = 30.0


class Held:
    """Scores batches as the engine does, notes how many candidates they have, and begins none before ``go``."""

    def __init__(self) -> None:
        self._score = engine.score_batch
        self.rows: list[int] = []
        self.began, self.go = threading.Event(), threading.Event()

    def __call__(
        self, key: scoring.BatchKey, batch: Sequence[scoring.QueuedRequest]
    ) -> list[scoring.RequestScores | Exception]:
        self.rows.append(sum(len(work.request) for work in batch))
        self.began.set()
        assert self.go.wait(SECONDS)
        return self._score(key, batch)


@contextmanager
def serving(repository: Path) -> Iterator[str]:
    """The app's URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(create_app(Settings(repository=repository)), http=LimitedHttpProtocol, log_config=None)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def wait_for(url: str, sample: str) -> None:
    """Reads the metrics until they hold this line."""
    give_up = time.monotonic() + SECONDS
    while True:
        with urllib.request.urlopen(f"{url}/metrics", timeout=SECONDS) as response:
            lines = response.read().decode().splitlines()
        if sample in lines:
            return
        assert time.monotonic() < give_up, [line for line in lines if line.startswith("ranker_requests")]


@pytest.mark.parametrize("times", [1, 2])
def test_who_hangs_up_is_not_scored(
    repository: Path, request_body: dict[str, Any], monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Also with another request behind the one that waits."""
    held = Held()
    monkeypatch.setattr(engine, "score_batch", held)
    with serving(repository) as url:
        answers: list[Any] = []
        staying = threading.Thread(target=lambda: answers.append(post(f"{url}/v1/rank", request_body)))
        staying.start()
        assert held.began.wait(SECONDS)
        body = json.dumps(request_body | {"items": [{"id": "v1"}]}).encode()
        head = f"POST /v1/rank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as leaving:
            leaving.sendall((head.encode() + b"\r\n" + body) * times)
            wait_for(url, "ranker_requests_in_flight 2.0")
        wait_for(url, 'ranker_requests_total{model="feed",status="499"} 1.0')
        held.go.set()
        staying.join()
    assert len(answers[0]["items"]) == len(request_body["items"])
    assert held.rows == [len(request_body["items"])]
