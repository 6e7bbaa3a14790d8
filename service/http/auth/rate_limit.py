"""Rate limits of API keys."""

from __future__ import annotations

import time
from collections.abc import Callable

from service.http.auth.keys import Key

BURST_SECONDS = 1.0
"""A key that was idle may send the requests of this time at once, but at least one."""
ROUNDING_SECONDS = 1e-6
"""Tolerance for the rounding of times."""


class RateLimiter:
    """Bounds the rate of requests per key with the generic cell rate algorithm, an equivalent of a token bucket.

    Each process has its own limiter. Its only state is one number per key.

    Args:
        clock: function that returns the current time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_times: dict[str, float] = {}  # name of the key → time of its next request at the maximum rate

    def seconds_until_allowed(self, key: Key) -> float:
        """Count one request of a key and return 0, or return the seconds after which the key may send one."""
        rate = key.max_requests_per_second
        if rate is None:
            return 0.0
        now, interval = self._clock(), 1.0 / rate
        next_time = max(self._next_times.get(key.name, now), now)
        seconds = next_time - now - max(BURST_SECONDS - interval, 0.0)
        if seconds > ROUNDING_SECONDS:
            return seconds
        self._next_times[key.name] = next_time + interval
        return 0.0
