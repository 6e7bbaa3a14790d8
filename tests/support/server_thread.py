"""A server in a thread of the test's process, and an engine that scores only when the test allows it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from service.app import create_app
from service.engine import engine, scheduler, scoring
from service.server.protocol import LimitedHttpProtocol
from service.settings import Settings
from tests.support.http_client import send_request
from tests.support.metrics import samples
from tests.support.ports import HOST
from tests.support.waiting import TIMEOUT_SECONDS, wait_until


class BlockedScorer:
    """Scores batches like the engine, but only after ``release`` is set; records their numbers of candidates."""

    def __init__(self) -> None:
        self._score = engine.score_batch
        self.rows: list[int] = []
        self.started, self.release = threading.Event(), threading.Event()

    def __call__(
        self, key: scheduler.BatchKey, batch: Sequence[scheduler.QueueEntry], *, traced: bool
    ) -> list[scoring.RequestScores | Exception]:
        self.rows.append(sum(part.batch_rows for part in batch))
        self.started.set()
        assert self.release.wait(TIMEOUT_SECONDS)
        return self._score(key, batch, traced=traced)


@contextmanager
def server_thread(repository: Path, **settings: object) -> Iterator[int]:
    """Run a server in a thread of this process; yield its port."""
    listener = socket.create_server((HOST, 0))
    app = create_app(Settings.model_validate({"repository": repository, **settings}))
    server = uvicorn.Server(uvicorn.Config(app, http=LimitedHttpProtocol, log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def wait_for_metric(port: int, name: str, value: float) -> None:
    """Wait until a sample of the metrics has a value."""
    url = f"http://{HOST}:{port}/metrics"
    wait_until(lambda: samples(send_request(url).body.decode()).get(name) == value, f"{name} == {value}")
