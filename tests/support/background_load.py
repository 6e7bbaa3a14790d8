"""Clients that send a request in the background, as fast as the service responds."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.http_client import NO_RESPONSE, HttpResponse
from tests.support.ports import HOST
from tests.support.waiting import TIMEOUT_SECONDS, wait_until


class BackgroundLoad:
    """Clients that send the same request continuously, each over a connection of its own.

    Args:
        port: port of the service.
        body: body of the requests, as JSON.
        path: path of the requests.
        count: number of clients.
        headers: further headers of the requests; ``Connection: close`` makes each request open a connection.

    Attributes:
        responses: the responses so far; the status is ``NO_RESPONSE`` where a connection ended without one. The request
            is then sent again over a new connection.
    """

    def __init__(
        self, port: int, body: Any, path: str = "/v1/rank", *, count: int = 4, headers: Mapping[str, str] | None = None
    ) -> None:
        self._port, self._path, self._count = port, path, count
        self._body = json.dumps(body).encode()
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._stopped = threading.Event()
        self.responses: list[HttpResponse] = []

    @contextmanager
    def running(self) -> Iterator[BackgroundLoad]:
        """Run the clients until the end of the context."""
        threads = [threading.Thread(target=self._send_requests) for _ in range(self._count)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            for thread in threads:
                thread.join()

    @property
    def statuses(self) -> Counter[int]:
        """Status → number of responses so far."""
        return Counter(response.status for response in self.responses.copy())

    def wait_for(self, count: int, status: int = 200) -> None:
        """Wait until the clients have received this many more responses with a status."""
        goal = self.statuses[status] + count
        wait_until(lambda: self.statuses[status] >= goal, lambda: f"{goal} responses {status}: {self.statuses}")

    def _send_requests(self) -> None:
        while not self._stopped.is_set():
            connection = http.client.HTTPConnection(HOST, self._port, timeout=TIMEOUT_SECONDS)
            try:
                while not self._stopped.is_set():
                    connection.request("POST", self._path, self._body, self._headers)
                    response = connection.getresponse()
                    headers = {name.lower(): value for name, value in response.headers.items()}
                    self.responses.append(HttpResponse(response.status, headers, response.read()))
                    if response.will_close:
                        break
            except (OSError, http.client.HTTPException):
                self.responses.append(HttpResponse(NO_RESPONSE, {}, b""))
                self._stopped.wait(0.02)  # nothing may listen for a while
            finally:
                connection.close()
