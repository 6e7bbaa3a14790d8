"""Clients that compare every response of a service with the expected ranking while faults are injected."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.support.http_client import NO_RESPONSE, send_request
from tests.support.waiting import wait_until

TOLERANCE = 1e-5


class CheckingClients:
    """Clients that send the same ranking request continuously, each on new connections.

    Args:
        url: Base URL of the service.
        body: Body of the request. Its response must not depend on the served version or on the feature store.
        count: Number of clients.

    Attributes:
        responses: Number of correct responses.
        degraded: Number of those that are degraded.
        lost: Number of connections that ended without a response; the request is then sent again.
        faults: Descriptions of all wrong responses.
    """

    def __init__(self, url: str, body: Any, count: int = 4) -> None:
        self._url, self._body, self._count = f"{url}/v1/rank", body, count
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._expected = self._scores(send_request(self._url, body).json())
        self.responses = self.degraded = self.lost = 0
        self.faults: list[str] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(self._count) as pool:
            futures = [pool.submit(self._send_requests) for _ in range(self._count)]
            try:
                yield
            finally:
                self._stopped.set()
            for future in futures:
                future.result()

    def wait_for_responses(self, count: int) -> None:
        """Wait until the clients have received this many more responses."""
        goal = self.responses + count
        wait_until(lambda: self.responses >= goal or self.faults, "the clients receive responses")

    def _send_requests(self) -> None:
        while not self._stopped.is_set():
            response = send_request(self._url, self._body)
            with self._lock:
                if response.status == NO_RESPONSE:
                    self.lost += 1
                elif response.status != 200:
                    self.faults.append(f"{response.status} {response.body[:300]!r}")
                elif not self._is_expected(response.json()):
                    self.faults.append(f"other scores: {response.body[:300]!r}")
                else:
                    self.responses += 1
                    self.degraded += response.json()["degraded"]

    def _is_expected(self, document: Any) -> bool:
        scores = self._scores(document)
        return scores.keys() == self._expected.keys() and all(
            np.allclose(scores[item], self._expected[item], rtol=TOLERANCE, atol=TOLERANCE) for item in scores
        )

    @staticmethod
    def _scores(document: Any) -> dict[Any, list[float]]:
        return {item["id"]: [item["score"], *item["scores"].values()] for item in document["items"]}
