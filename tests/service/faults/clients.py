"""Clients that compare every response of a service with the expected ranking while faults are injected."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.background_load import BackgroundLoad
from tests.support.http_client import NO_RESPONSE, post_json
from tests.support.ports import HOST
from tests.support.waiting import wait_until

TOLERANCE = 1e-5


class CheckingClients(BackgroundLoad):
    """Clients that send the same ranking request continuously, each time over a new connection.

    Args:
        port: port of the service.
        body: body of the request. Its response must not depend on the served version or on the feature store.
    """

    def __init__(self, port: int, body: Any) -> None:
        super().__init__(port, body, headers={"Connection": "close"})
        self._expected = _scores(post_json(f"http://{HOST}:{port}/v1/rank", body))
        self._checked = 0

    @property
    def degraded(self) -> int:
        """Number of degraded responses so far."""
        return sum(response.json()["degraded"] for response in self.responses.copy() if response.status == 200)

    def wait_until_complete(self, count: int) -> None:
        """Wait until that many successive responses are not degraded, because no circuit breaker is open."""

        def are_complete() -> bool:
            last = self.responses[-count:]
            return all(response.status == 200 and not response.json()["degraded"] for response in last)

        wait_until(are_complete, "no response is degraded")

    def faults(self) -> list[str]:
        """Describe the wrong ones of the responses since the last call."""
        new = self.responses[self._checked :]
        self._checked += len(new)
        return [
            f"{response.status} {response.body[:300]!r}"
            for response in new
            if response.status not in (200, NO_RESPONSE) or (response.status == 200 and not self._is_expected(response))
        ]

    def _is_expected(self, response: Any) -> bool:
        scores = _scores(response.json())
        return scores.keys() == self._expected.keys() and all(
            np.allclose(scores[item], self._expected[item], rtol=TOLERANCE, atol=TOLERANCE) for item in scores
        )


def _scores(document: Any) -> dict[Any, list[float]]:
    return {item["id"]: [item["score"], *item["scores"].values()] for item in document["items"]}
