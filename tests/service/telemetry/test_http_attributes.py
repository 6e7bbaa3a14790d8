"""Attributes of HTTP server spans follow the semantic conventions of OpenTelemetry."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.semconv.attributes import (
    client_attributes,
    error_attributes,
    http_attributes,
    network_attributes,
    server_attributes,
    url_attributes,
    user_agent_attributes,
)
from opentelemetry.semconv.schemas import Schemas
from starlette.routing import Route

from service.telemetry.http_attributes import SCHEMA_URL, request_attributes, response_attributes, span_name


def scope(method: str = "POST", **changes: Any) -> dict[str, Any]:
    """An ASGI scope as uvicorn creates it."""
    fields: dict[str, Any] = {
        "method": method,
        "path": "/v1/rank",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(b"host", b"ranker:8000"), (b"user-agent", b"shop/1.2")],
        "server": ("10.0.0.2", 8000),
        "client": ("10.0.0.9", 51234),
        "route": Route("/v1/rank", lambda _: None),
    }
    return fields | changes


def server_of(host: bytes | None, **changes: Any) -> tuple[object, object]:
    attributes = request_attributes(scope(headers=[] if host is None else [(b"host", host)], **changes))
    return attributes.get("server.address"), attributes.get("server.port")


def test_attributes_have_the_stable_names_of_the_conventions() -> None:
    assert request_attributes(scope()) == {
        http_attributes.HTTP_REQUEST_METHOD: "POST",
        http_attributes.HTTP_ROUTE: "/v1/rank",
        url_attributes.URL_PATH: "/v1/rank",
        url_attributes.URL_SCHEME: "http",
        network_attributes.NETWORK_PROTOCOL_VERSION: "1.1",
        server_attributes.SERVER_ADDRESS: "ranker",
        server_attributes.SERVER_PORT: 8000,
        client_attributes.CLIENT_ADDRESS: "10.0.0.9",
        user_agent_attributes.USER_AGENT_ORIGINAL: "shop/1.2",
    }
    assert response_attributes(503) == {
        http_attributes.HTTP_RESPONSE_STATUS_CODE: 503,
        error_attributes.ERROR_TYPE: "503",
    }
    assert response_attributes(499) == {http_attributes.HTTP_RESPONSE_STATUS_CODE: 499}
    assert SCHEMA_URL in {schema.value for schema in Schemas}


def test_unknown_method_is_recorded_as_other() -> None:
    assert span_name(scope()) == "POST /v1/rank"
    assert span_name(scope("BREW")) == "HTTP /v1/rank"
    assert span_name(scope("get", route=None)) == "HTTP"
    assert request_attributes(scope("BREW"))["http.request.method"] == "_OTHER"


def test_attributes_that_are_unknown_are_absent() -> None:
    attributes = request_attributes(scope(headers=[], server=None, client=None, route=None))
    assert attributes.keys() == {"http.request.method", "url.path", "url.scheme", "network.protocol.version"}


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (b"ranker", ("ranker", 80)),
        (b"10.1.2.3:81", ("10.1.2.3", 81)),
        (b"[2001:db8::1]:8443", ("2001:db8::1", 8443)),
        (b"[::1]", ("::1", 80)),
    ],
)
def test_server_is_taken_from_the_host_header(host: bytes, expected: tuple[str, int]) -> None:
    assert server_of(host) == expected


@pytest.mark.parametrize(
    "host", [None, b"", b"a b", b"a:b", b"a:65536", b"a:99999999999999999999", b"::1", b"[", b":80"]
)
def test_server_without_a_valid_host_header_is_that_of_the_socket(host: bytes | None) -> None:
    assert server_of(host) == ("10.0.0.2", 8000)
    assert server_of(host, server=("/run/ranker.sock", None)) == ("/run/ranker.sock", None)


def test_default_port_depends_on_the_scheme() -> None:
    assert server_of(b"ranker", scheme="https") == ("ranker", 443)
