"""Names and attributes of HTTP server spans according to the semantic conventions of OpenTelemetry."""

from __future__ import annotations

import re
from typing import TypeAlias

from starlette.types import Scope

Attributes: TypeAlias = dict[str, str | int]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.30.0"
"""Version of the conventions."""

KNOWN_METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})
"""Methods of RFC 9110 and RFC 5789. Others are recorded as ``_OTHER``, so that clients cannot create new names."""

HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+))(?::([0-9]{1,5}))?")
"""Host header: an IPv6 address, or a name or IPv4 address, and the port."""

DEFAULT_PORTS = {"http": 80, "https": 443}


def span_name(scope: Scope) -> str:
    """Return the name of a request's span: its method and, if known, its route."""
    method = scope["method"] if scope["method"] in KNOWN_METHODS else "HTTP"
    route = _route(scope)
    return method if route is None else f"{method} {route}"


def request_attributes(scope: Scope) -> Attributes:
    """Return the attributes that samplers may use. They contain neither the query nor the body.

    Args:
        scope: ASGI scope of the request.
    """
    headers = dict(scope["headers"])
    method, scheme = scope["method"], scope["scheme"]
    attributes: Attributes = {
        "http.request.method": method if method in KNOWN_METHODS else "_OTHER",
        "url.path": scope["path"],
        "url.scheme": scheme,
        "network.protocol.version": scope["http_version"],
    }
    address, port = _server(headers.get(b"host", b"").decode("latin-1"), scope)
    if address is not None:
        attributes["server.address"] = address
    if port is not None:
        attributes["server.port"] = port
    if scope.get("client"):
        attributes["client.address"] = scope["client"][0]
    if b"user-agent" in headers:
        attributes["user_agent.original"] = headers[b"user-agent"].decode("latin-1")
    if (route := _route(scope)) is not None:
        attributes["http.route"] = route
    return attributes


def response_attributes(status: int) -> Attributes:
    """Return the attributes of a response; ``error.type`` is the status code of a server error.

    Args:
        status: status code of the response.
    """
    attributes: Attributes = {"http.response.status_code": status}
    if status >= 500:
        attributes["error.type"] = str(status)
    return attributes


def _route(scope: Scope) -> str | None:
    return getattr(scope.get("route"), "path", None)


def _server(host: str, scope: Scope) -> tuple[str | None, int | None]:
    """Return the address and port that the client used, or those of the socket without a valid Host header."""
    match = HOST.fullmatch(host)
    port = int(match[3]) if match and match[3] else DEFAULT_PORTS.get(scope["scheme"])
    if match and (port is None or port <= 65535):
        return match[1] or match[2], port
    return scope.get("server") or (None, None)
