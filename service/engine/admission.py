"""Who may come in: candidates are counted from a request's arrival until its answer, wherever in between they wait."""

from __future__ import annotations

import asyncio

from service.engine.errors import QueueFullError

REMEMBERED = 16
"""Requests over which the average size is taken."""


class Admission:
    """Bounds the candidates, and the requests, that have come and are not answered.

    Bounding all of them bounds how long any of them waits, be it for the event loop or for the inference thread. The
    candidates of a request are not known before it is read; until then it counts for as many as the latest ones had.

    Not for several threads.

    Args:
        max_rows: candidates. One request may always enter an empty service, however many it has.
        max_requests: because small ones cost more than their candidates.

    Attributes:
        rows: candidates inside.
        requests: inside.
    """

    def __init__(self, max_rows: int, max_requests: int) -> None:
        self._max_rows, self._max_requests = max_rows, max_requests
        self._usual = 0.0
        self.rows = self.requests = 0

    @property
    def full(self) -> bool:
        """Whether there is no room for a request that is not read yet."""
        if not self.requests:
            return False
        return self.requests >= self._max_requests or self.rows + self._usual > self._max_rows

    def try_acquire(self) -> Permit | None:
        """Admits a request that is not read yet; None if the service is full."""
        if self.full:
            return None
        usual = int(self._usual)
        self.rows += usual
        self.requests += 1
        return Permit(self, usual)

    def _recount(self, before: int, rows: int) -> None:
        """A request that counted for ``before`` has ``rows``."""
        self._usual += (rows - self._usual) / REMEMBERED
        if self.requests > 1 and self.rows - before + rows > self._max_rows:
            raise QueueFullError
        self.rows += rows - before

    def _add(self, requests: int, rows: int) -> None:
        self.requests += requests
        self.rows += rows


class Permit:
    """Of a request that was admitted; whoever took it hands it back when the request is answered or given up.

    Args:
        admission: that gave it.
        rows: that the request counts for.

    Attributes:
        rows: the same now.
        task: that works on the request, while it can be given up.
        abandoned: whether the client is gone.
    """

    __slots__ = ("_admission", "_counts", "_left", "cancelled", "rows", "task")

    def __init__(self, admission: Admission, rows: int) -> None:
        self._admission, self.rows = admission, rows
        self.task: asyncio.Task[object] | None = None
        self.cancelled = False
        self._counts, self._left = True, False

    def count(self, rows: int) -> None:
        """The request has been read: from now on it counts for what it has.

        Raises:
            QueueFullError: that is more than there is room for beside the others.
        """
        self._admission._recount(self.rows, rows)
        self.rows = rows

    def suspend(self) -> None:
        """The rest of the request is still to come: it counts for nothing, or slow clients would keep others out."""
        if self._counts:
            self._counts = False
            self._admission._add(-1, -self.rows)

    def restore(self) -> None:
        """The rest has come."""
        if not (self._counts or self._left):
            self._counts = True
            self._admission._add(1, self.rows)

    def cancel(self) -> None:
        """The client is gone: work on the request ends."""
        self.cancelled = True
        if self.task is not None:
            self.task.cancel()

    def release(self) -> None:
        """The request is answered or given up."""
        self.suspend()
        self._left = True
