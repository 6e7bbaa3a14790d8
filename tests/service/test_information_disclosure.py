"""Errors, logs and metrics disclose no implementation details, keys, users or items."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.backends.onnx import OnnxBackend
from service.http.auth.keys import Scope, create_key
from service.http.media_types import ARROW, JSON
from service.settings import Settings
from tests.service.test_invalid_requests import INVALID
from tests.support.arrow_streams import stream
from tests.support.disclosure import internal_details

USER, ITEM = "user-4711-of-the-test", "item-4712-of-the-test"
REQUEST: dict[str, Any] = {"user": {"id": USER}, "items": [{"id": ITEM}]}
INVALID_BODIES: list[Any] = [
    *(None, 1, "x", [], {"items": 1}, {"items": [ITEM]}, {"items": [{"id": [ITEM]}]}, {"items": {"id": ITEM}}),
    *(REQUEST | {name: USER} for name in ("user", "tasks", "top_n", "deadline_ms", "explain", "layout", USER)),
    *(REQUEST | {name: [USER]} for name in ("context", "objective", "request_id")),
    *(REQUEST | {"user": {"id": USER, "features": {"age": USER}}}, REQUEST | {"deadline_ms": 0.001}),
    *(REQUEST | {"items": [{"id": ITEM}] * count} for count in (2, 201)),
]


class ProtectedService:
    """A client of a service with keys, and a key with all scopes."""

    def __init__(self, repository: Path, file: Path) -> None:
        self.secret = create_key(file, "tests", get_args(Scope))
        settings = Settings(repository=repository, keys=file, max_candidates=200, max_body_bytes=100_000)
        self.client = TestClient(create_app(settings), raise_server_exceptions=False)

    def rank(self, path: str = "/v1/rank", **request: Any) -> Any:
        headers = {"X-API-Key": self.secret, "Content-Type": JSON} | request.pop("headers", {})
        return self.client.post(path, headers=headers, **request)

    def error_responses(self) -> Iterator[Any]:
        """Yield the responses to requests of every kind that is rejected."""
        for body in [*INVALID_BODIES, *(REQUEST | invalid for invalid, *_ in INVALID if isinstance(invalid, dict))]:
            yield self.rank(json=body)
        for path in ("/v1/models/nope/rank", "/v1/models/feed/versions/9/rank", "/nowhere", "/v1/rank/", "/metrics"):
            yield self.rank(path, json=REQUEST)
        for content in (b"", b"{", b"\xff", b'{"items": [' + USER.encode(), b"[" * 99_999, b" " * 100_001):
            yield self.rank(content=content)
        for headers in ({"Content-Type": USER}, {"Accept": f"text/{USER}"}):
            yield self.rank(json=REQUEST, headers=headers)
        for body in (b"", stream({"item_id": [ITEM]})[:-30], stream({"item_id": [ITEM, ITEM]}), stream({USER: [ITEM]})):
            yield self.rank(content=body, headers={"Content-Type": ARROW})
        yield self.rank(content=stream({"item_id": [ITEM]}, {"user": {"id": [USER]}}), headers={"Content-Type": ARROW})
        for key in ("", self.secret[:-1], f"{self.secret}x"):
            yield self.rank(json=REQUEST, headers={"X-API-Key": key})


@pytest.fixture(scope="module")
def service(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProtectedService]:
    protected = ProtectedService(repository, tmp_path_factory.mktemp("keys") / "keys.json")
    with protected.client:
        yield protected


@pytest.fixture
def debug_log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog


def assert_no_secrets(service: ProtectedService, text: str) -> None:
    for secret in (USER, ITEM, service.secret, service.secret[:-1]):
        assert secret not in text


def test_error_responses_disclose_no_implementation_details(service: ProtectedService) -> None:
    statuses = set()
    for response in service.error_responses():
        assert response.status_code >= 400, response.text
        statuses.add(response.status_code)
        assert response.headers["content-type"] == "application/problem+json"
        assert not internal_details(response.text)
        assert service.secret[:-1] not in response.text
    assert statuses == {400, 401, 404, 405, 406, 413, 415, 422, 504}


def test_internal_error_is_described_only_in_the_log(
    service: ProtectedService, monkeypatch: pytest.MonkeyPatch, debug_log: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("/srv/models/weights.safetensors line 4")

    monkeypatch.setattr(OnnxBackend, "scores", fail)
    response = service.rank(json=REQUEST)
    assert response.status_code == 500
    assert response.json()["detail"] == "the service failed; its log says why"
    assert not internal_details(response.text)
    assert "weights.safetensors line 4" in debug_log.text
    assert_no_secrets(service, debug_log.text)


def test_logs_and_metrics_disclose_no_user_item_or_key(
    service: ProtectedService, debug_log: pytest.LogCaptureFixture
) -> None:
    assert service.rank(json=REQUEST).status_code == 200
    assert service.rank(json=REQUEST | {"explain": True, "layout": "columns"}).status_code == 200
    assert service.rank(content=stream({"item_id": [ITEM]}), headers={"Content-Type": ARROW}).status_code == 200
    list(service.error_responses())
    assert_no_secrets(service, debug_log.text)
    assert_no_secrets(service, service.client.get("/metrics").text)


def test_responses_have_security_headers(service: ProtectedService) -> None:
    for response in (service.rank(json=REQUEST), service.rank(json={}), service.client.get("/v2/health/live")):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"


def test_disclosure_checks_detect_disclosures(debug_log: pytest.LogCaptureFixture) -> None:
    assert internal_details('File "/srv/app.py", line 3, in f: pydantic.ValidationError') != []
    logging.getLogger("ranker.service").debug(USER)
    assert USER in debug_log.text
