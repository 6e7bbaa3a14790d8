"""A circuit breaker: what fails again and again is left alone for a while, so that requests do not wait for it."""

from __future__ import annotations

import time


class CircuitBreaker:
    """Opens after so many failures in a row; then one attempt in a while is let through, until one succeeds.

    Args:
        failures: in a row, that open it.
        seconds: from one attempt to the next while it is open.
    """

    def __init__(self, failures: int, seconds: float) -> None:
        self._most, self._seconds = failures, seconds
        self._failures = 0
        self._next: float | None = None  # attempt, if it is open

    def allows(self) -> bool:
        """Whether to make an attempt. While it is open that is the only one for ``seconds``, whatever becomes of it."""
        if self._next is None:
            return True
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True

    def failed(self) -> bool:
        """An attempt failed; whether that opened it."""
        self._failures += 1
        opens = self._next is None and self._failures >= self._most
        if opens:
            self._next = time.monotonic() + self._seconds
        return opens

    def succeeded(self) -> bool:
        """An attempt succeeded; whether that closed it."""
        closes = self._next is not None
        self._failures, self._next = 0, None
        return closes
