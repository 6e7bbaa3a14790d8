"""Decides on the attempts of a call: what to send, whether and when to retry, and which error to raise. Does no I/O."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, NoReturn

import httpx2

from ranking.client.calls import Call, Result, is_visible_ascii
from ranking.client.errors import ConnectionFailedError, RankingError, RequestTimeoutError, error_of_response

FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.1, 5.0
"""Upper bounds of the random wait before the first retry, which doubles with each one, and before any retry."""
MAX_TIMEOUT_SECONDS = 86_400.0
RETRIED_STATUS = (429, 503)
REJECTED = 429
"""Status of a request that had no effect."""
UNSENT = (httpx2.ConnectError, httpx2.ProxyError)
"""Failures before anything was sent to the service."""
POOL = httpx2.Limits(max_connections=100, max_keepalive_connections=100, keepalive_expiry=30.0)
"""Connections of a client; the service closes idle ones later (75 s), so that requests do not meet a closing one."""


@dataclass(frozen=True)
class Connection:
    """Address of the service, and limits of every call.

    Attributes:
        base_url: address without a slash at its end; it may have a path.
        headers: headers of every request.
        timeout: seconds of a call with all its attempts and waits.
        retries: maximum number of attempts after the first.
    """

    base_url: str
    headers: Mapping[str, str]
    timeout: float
    retries: int

    @classmethod
    def create(cls, base_url: str, api_key: str | None, timeout: float, retries: int) -> Connection:
        """Validate the arguments of a client.

        Raises:
            ValueError: an argument is not valid.
        """
        try:
            url = httpx2.URL(base_url)
        except httpx2.InvalidURL as error:
            raise ValueError(f"base_url is {base_url!r}: {error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"base_url is {base_url!r}: it must start with http:// or https:// and a host")
        if not 0 < timeout <= MAX_TIMEOUT_SECONDS:
            raise ValueError(f"timeout is {timeout}: it must be above 0 and at most {MAX_TIMEOUT_SECONDS:.0f} seconds")
        if retries < 0:
            raise ValueError(f"retries is {retries}: it must not be negative")
        if api_key is not None and not is_visible_ascii(api_key):
            raise ValueError("api_key must have at least one character, and only visible ASCII characters")
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        return cls(base_url.rstrip("/"), headers, timeout, retries)


@dataclass(frozen=True)
class Reply:
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class TimeLeft(dict[str, float]):
    """Timeouts of an attempt in seconds: whenever the HTTP library reads one, it is the time that is left of the call.

    Args:
        end: end of the call on the monotonic clock.
    """

    def __init__(self, end: float) -> None:
        super().__init__()
        self._end = end

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ARG002 — the signature of dict
        """Return the seconds that are left, at least a millisecond: zero would mean not to wait at all."""
        return max(self._end - time.monotonic(), 0.001)


class Exchange(Generic[Result]):
    """The attempts of one call.

    Args:
        call: request to send.
        connection: address and limits.
    """

    def __init__(self, call: Call[Result], connection: Connection) -> None:
        self._call, self._connection = call, connection
        start = time.monotonic()
        self._end = start + connection.timeout
        self._last_start = self._end if call.deadline is None else min(self._end, start + call.deadline)
        self._attempts = 0

    def request(self) -> httpx2.Request:
        """Return the request of the next attempt."""
        self._attempts += 1
        call, connection = self._call, self._connection
        headers = {**connection.headers, **call.headers}
        url, extensions = connection.base_url + call.path, {"timeout": TimeLeft(self._end)}
        return httpx2.Request(call.method, url, headers=headers, content=call.body, extensions=extensions)

    def time_left(self) -> float:
        """Return the seconds that are left of the timeout; negative after its end."""
        return self._end - time.monotonic()

    def check_time(self) -> None:
        """Check that the timeout has not passed.

        Raises:
            RequestTimeoutError: it has passed.
        """
        if self.time_left() <= 0:
            self.timed_out()

    def timed_out(self) -> NoReturn:
        """Raise the error of a timeout.

        Raises:
            RequestTimeoutError: always.
        """
        detail = f"no response within {self._connection.timeout:g} s: attempt {self._attempts} was not answered in time"
        raise RequestTimeoutError(detail, request_id=self._call.headers.get("X-Request-ID")) from None

    def pause_after_failure(self, failure: httpx2.RequestError) -> float:
        """Return the seconds to wait before the next attempt, after one without a response.

        Raises:
            RequestTimeoutError: the timeout has passed.
            ConnectionFailedError: another attempt is not safe, or does not fit.
        """
        if isinstance(failure, httpx2.TimeoutException):
            self.timed_out()
        detail = f"{self._connection.base_url}: {failure or type(failure).__name__}"
        error = ConnectionFailedError(detail, request_id=self._call.headers.get("X-Request-ID"))
        return self._pause(error, safe=self._call.repeatable or isinstance(failure, UNSENT))

    def pause_after_response(self, reply: Reply) -> float | None:
        """Return the seconds to wait before the next attempt, or None if the response is the result.

        Raises:
            RankingError: the response is an error, and another attempt is not safe or does not fit.
        """
        if 200 <= reply.status < 300:
            return None
        seconds = retry_after(reply.headers.get("retry-after"), datetime.now(UTC))
        error = error_of_response(reply.status, reply.body, reply.headers.get("x-request-id"), seconds)
        safe = reply.status == REJECTED or self._call.repeatable
        return self._pause(error, safe=safe and reply.status in RETRIED_STATUS)

    def _pause(self, error: RankingError, *, safe: bool) -> float:
        """Return how long to wait for the next attempt; raise the error if there is none."""
        if not safe or not self._call.retried or self._attempts > self._connection.retries:
            raise error
        bound = min(FIRST_BACKOFF_SECONDS * 2.0 ** (self._attempts - 1), MAX_BACKOFF_SECONDS)
        if error.retry_after is not None:
            bound = FIRST_BACKOFF_SECONDS  # so that clients that were rejected together do not return together
        pause = (error.retry_after or 0.0) + random.uniform(0.0, bound)
        if time.monotonic() + pause >= self._last_start:
            raise error
        return pause


def retry_after(value: str | None, now: datetime) -> float | None:
    """Return the seconds of a ``Retry-After`` header, which is a number of seconds or a date; None if it is neither.

    Args:
        value: value of the header, or None.
        now: present time, with a time zone.
    """
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        date = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds())
