"""Admission control: bounds the candidates and requests in the process, from arrival to response."""

from __future__ import annotations

import asyncio

from service.engine.errors import QueueFullError

AVERAGING_REQUESTS = 16
"""Number of requests over which the average number of candidates is smoothed."""
BUSY_SHARE = 7 / 8
"""Share of the limits for busy connections; the rest is reserved for new ones and for those that wait in between.

Clients that send again at once after a response would otherwise take all room that their responses leave.
"""


class Admission:
    """Bounds the candidates and the requests that are being processed. Not thread-safe.

    Bounding all of them bounds the time that any of them waits, for the event loop or for the inference thread. The
    number of candidates is unknown until a request is parsed; until then the request counts with the recent average.

    Args:
        max_rows: maximum number of candidates. An idle service accepts one request of any size.
        max_requests: maximum number of requests, because small requests cost more than their candidates.

    Attributes:
        rows: number of admitted candidates.
        requests: number of admitted requests.
    """

    def __init__(self, max_rows: int, max_requests: int) -> None:
        self._max_rows, self._max_requests = max_rows, max_requests
        self._average_rows = 0.0
        self.rows = self.requests = 0

    def is_full(self, *, busy: bool = False) -> bool:
        """Whether the limits reject a request that has not been parsed yet.

        Args:
            busy: whether the request has followed the last response of its connection at once.
        """
        if not self.requests:
            return False
        share = BUSY_SHARE if busy else 1.0
        return self.requests >= share * self._max_requests or self.rows + self._average_rows > share * self._max_rows

    def try_acquire(self, *, busy: bool = False) -> Permit | None:
        """Admit a request that has not been parsed yet; return None if the service is full, see ``is_full``."""
        if self.is_full(busy=busy):
            return None
        rows = int(self._average_rows)
        self.add(1, rows)
        return Permit(self, rows)

    def recount(self, estimate: int, rows: int) -> None:
        """Replace the estimated number of candidates of an admitted request by the actual one.

        Raises:
            QueueFullError: there is no room for so many candidates.
        """
        self._average_rows += (rows - self._average_rows) / AVERAGING_REQUESTS
        if self.requests > 1 and self.rows - estimate + rows > self._max_rows:
            raise QueueFullError
        self.rows += rows - estimate

    def add(self, requests: int, rows: int) -> None:
        """Change the numbers of admitted requests and candidates."""
        self.requests += requests
        self.rows += rows


class Permit:
    """Admission of one request; the component that acquired it releases it after the response.

    Args:
        admission: admission control that issued the permit.
        rows: estimated number of candidates.

    Attributes:
        rows: number of candidates that the request counts with.
        task: task that processes the request, while it may be cancelled.
        cancelled: whether the client has disconnected.
    """

    __slots__ = ("_admission", "_counted", "_released", "cancelled", "rows", "task")

    def __init__(self, admission: Admission, rows: int) -> None:
        self._admission, self.rows = admission, rows
        self.task: asyncio.Task[object] | None = None
        self.cancelled = False
        self._counted, self._released = True, False

    def count(self, rows: int) -> None:
        """Replace the estimated number of candidates by the actual one, once the request is parsed.

        Raises:
            QueueFullError: there is no room for so many candidates.
        """
        self._admission.recount(self.rows, rows)
        self.rows = rows

    def suspend(self) -> None:
        """Stop counting the request while the rest of its body arrives, so that slow clients do not block others."""
        if self._counted:
            self._counted = False
            self._admission.add(-1, -self.rows)

    def resume(self) -> None:
        """Count a suspended request again, once its body is complete."""
        if not (self._counted or self._released):
            self._counted = True
            self._admission.add(1, self.rows)

    def cancel(self) -> None:
        """Cancel the processing of the request, because its client has disconnected."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    def release(self) -> None:
        """Stop counting the request for good."""
        self.suspend()
        self._released = True
