"""Clients that record which ranking requests and feedback a service answered."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.ports import HOST
from tests.support.waiting import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

PAUSE_SECONDS = 0.01
"""Seconds between two requests of a client."""
MAX_ITEMS = 30
LARGE_EVERY, LARGE_EVENTS = 10, 500
"""Every tenth feedback has many events, so that its write takes long."""


@dataclass
class Connection:
    """Answers on one connection, all by the same process.

    Attributes:
        answered: ids of answered ranking requests, in their order.
        accepted: ids of accepted feedback.
    """

    answered: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)


class RecordingClients:
    """Clients with one connection each, which they open again when the service has closed it.

    Args:
        port: port of the service.
        name: prefix of all request ids.
        count: number of clients.

    Attributes:
        answered: ids of all answered ranking requests so far.
        connections: all connections that have ended.
        faults: unexpected responses.
    """

    def __init__(self, port: int, name: str, count: int = 3) -> None:
        self._port, self._name, self._count = port, name, count
        self._stopped = threading.Event()
        self._numbers = itertools.count()
        self.answered: list[str] = []
        self.connections: list[Connection] = []
        self.faults: list[str] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send requests until the block ends."""
        with ThreadPoolExecutor(self._count) as pool:
            futures = [pool.submit(self._run) for _ in range(self._count)]
            try:
                yield
            finally:
                self._stopped.set()
            for future in futures:
                future.result()

    def _run(self) -> None:
        while not self._stopped.is_set():
            connection, client = Connection(), http.client.HTTPConnection(HOST, self._port, timeout=TIMEOUT_SECONDS)
            try:
                while not self._stopped.is_set():
                    self._exchange(client, connection)
                    time.sleep(PAUSE_SECONDS)
            except (OSError, http.client.HTTPException):
                time.sleep(PAUSE_SECONDS)
            finally:
                client.close()
                self.connections.append(connection)

    def _exchange(self, client: http.client.HTTPConnection, connection: Connection) -> None:
        """Send a ranking request and, for every second one, feedback."""
        number = next(self._numbers)
        count = 1 + number % MAX_ITEMS
        request_id = f"{self._name}-{number}-{count}"
        items = [{"id": item, "features": {"price": item + 0.5}} for item in range(count)]
        body = {"request_id": request_id, "user": {"id": f"u{number % 20}"}, "items": items}
        if self._post(client, "/v1/rank", body, 200):
            connection.answered.append(request_id)
            self.answered.append(request_id)
        if number % 2:
            events = LARGE_EVENTS if number % LARGE_EVERY == 1 else 1 + number % 3
            feedback = [{"item": item, "labels": {"click": 1.0}} for item in range(events)]
            if self._post(client, "/v1/feedback", {"request_id": request_id, "events": feedback}, 202):
                connection.accepted.append(f"{request_id} {events}")

    def _post(self, client: http.client.HTTPConnection, path: str, body: Any, expected: int) -> bool:
        client.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = client.getresponse()
        text = response.read()
        if response.will_close:  # the client must not connect again on this object, possibly to another process
            raise http.client.HTTPException
        if response.status not in {expected, 429, 503}:
            self.faults.append(f"{path}: {response.status} {text[:300]!r}")
        return response.status == expected
