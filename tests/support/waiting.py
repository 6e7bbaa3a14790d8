"""Poll a condition until it holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

TIMEOUT_SECONDS = 180.0
"""Upper bound on a single step, such as the start of a process, on a busy machine."""

Result = TypeVar("Result")


def wait_until(
    condition: Callable[[], Result],
    description: str | Callable[[], str] = "the condition holds",
    *,
    timeout: float = TIMEOUT_SECONDS,
    interval: float = 0.02,
) -> Result:
    """Poll a condition and return its first true value.

    Args:
        condition: function to poll; it may raise to fail at once.
        description: text for the failure message, or a function that returns it.
        timeout: seconds until the wait fails.
        interval: seconds between two polls.

    Raises:
        AssertionError: the condition does not hold within the timeout.
    """
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        if time.monotonic() >= deadline:
            text = description() if callable(description) else description
            raise AssertionError(f"not within {timeout:g} s: {text}")
        time.sleep(interval)
    return result
