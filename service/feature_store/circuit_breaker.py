"""Circuit breaker for a dependency that fails repeatedly."""

from __future__ import annotations

import time


class CircuitBreaker:
    """Opens after consecutive failures; while it is open, allows single probes until one succeeds.

    Args:
        failures: Number of consecutive failures that open the circuit breaker.
        seconds: Seconds between probes while it is open.
    """

    def __init__(self, failures: int, seconds: float) -> None:
        self._max_failures, self._seconds = failures, seconds
        self._failures = 0
        self._next_probe: float | None = None  # ``time.monotonic()``; None while closed

    def allows(self) -> bool:
        """Return whether to make an attempt. While open, allows one attempt per interval, whatever its outcome."""
        if self._next_probe is None:
            return True
        now = time.monotonic()
        if now < self._next_probe:
            return False
        self._next_probe = now + self._seconds
        return True

    def record_failure(self) -> bool:
        """Record a failed attempt and return whether it opened the circuit breaker."""
        self._failures += 1
        opens = self._next_probe is None and self._failures >= self._max_failures
        if opens:
            self._next_probe = time.monotonic() + self._seconds
        return opens

    def record_success(self) -> bool:
        """Record a successful attempt and return whether it closed the circuit breaker."""
        closes = self._next_probe is not None
        self._failures, self._next_probe = 0, None
        return closes
