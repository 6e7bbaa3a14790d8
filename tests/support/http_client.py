"""A minimal HTTP client for services that run in another process or thread."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from tests.support.waiting import TIMEOUT_SECONDS

NO_RESPONSE = 0
"""Status of a request whose connection was rejected or closed without a complete response."""


@dataclass(frozen=True)
class HttpResponse:
    """A response; the names of its headers are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def send_request(
    url: str,
    body: Any = None,
    *,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> HttpResponse:
    """Send a GET request, or a POST request with a JSON body; the status is ``NO_RESPONSE`` if the connection fails."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return HttpResponse(response.status, _lower_case(response.headers), response.read())
    except urllib.error.HTTPError as error:
        return HttpResponse(error.code, _lower_case(error.headers), error.read())
    except (OSError, HTTPException):
        return HttpResponse(NO_RESPONSE, {}, b"")


def post_json(url: str, body: Any) -> Any:
    """Send a POST request and return the JSON of its response.

    Raises:
        AssertionError: the status is not 200.
    """
    response = send_request(url, body)
    assert response.status == 200, (response.status, response.body)
    return response.json()


def read_until_closed(connection: socket.socket) -> bytes:
    """All bytes until the peer closes or resets the connection."""
    received = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(65_536):
            received += data
    return received


def _lower_case(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
