"""Neither errors nor logs nor metrics tell what is nobody's business: insides, keys, who was ranked for and what."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.backends.onnx import OnnxBackend
from service.http.auth import key_file
from service.http.auth.key_file import SCOPES
from service.http.media_types import ARROW, JSON
from service.settings import Settings
from tests.service.test_invalid_requests import INVALID
from tests.support.arrow_streams import stream
from tests.support.discretion import indiscretions

USER, ITEM = "user-4711-of-the-test", "item-4712-of-the-test"
WHO: dict[str, Any] = {"user": {"id": USER}, "items": [{"id": ITEM}]}
TYPES: list[Any] = [
    *(None, 1, "x", [], {"items": 1}, {"items": [ITEM]}, {"items": [{"id": [ITEM]}]}, {"items": {"id": ITEM}}),
    *(WHO | {"user": USER}, WHO | {"context": [USER]}, WHO | {"tasks": USER}, WHO | {"objective": [USER]}),
    *(WHO | {"top_n": USER}, WHO | {"deadline_ms": USER}, WHO | {"explain": USER}, WHO | {"request_id": [USER]}),
    *(WHO | {"layout": USER}, WHO | {"user": {"id": USER, "features": {"age": USER}}}, WHO | {USER: ITEM}),
    *(WHO | {"items": [{"id": ITEM}] * 2}, WHO | {"deadline_ms": 1e-6}, WHO | {"items": [{"id": ITEM}] * 201}),
]


class Guarded:
    """A service with keys, and one of them."""

    def __init__(self, repository: Path, file: Path) -> None:
        self.secret = key_file.create_key(file, "tests", SCOPES)
        settings = Settings(repository=repository, keys=file, max_candidates=200, max_body_bytes=100_000)
        self.client = TestClient(create_app(settings), raise_server_exceptions=False)

    def rank(self, path: str = "/v1/rank", **request: Any) -> Any:
        headers = {"X-API-Key": self.secret, "Content-Type": JSON} | request.pop("headers", {})
        return self.client.post(path, headers=headers, **request)

    def errors(self) -> Iterator[Any]:
        """Answers to all that can be wrong with a request."""
        for body in [*TYPES, *(WHO | wrong for wrong, _ in INVALID if wrong)]:
            yield self.rank(json=body)
        for path in ("/v1/models/nope/rank", "/v1/models/feed/versions/9/rank", "/nowhere", "/v1/rank/", "/metrics"):
            yield self.rank(path, json=WHO)
        for content in (b"", b"{", b"\xff", b'{"items": [' + USER.encode(), b"[" * 99_999, b" " * 100_001):
            yield self.rank(content=content)
        for headers in ({"Content-Type": USER}, {"Accept": f"text/{USER}"}):
            yield self.rank(json=WHO, headers=headers)
        for body in (b"", stream({"item_id": [ITEM]})[:-30], stream({"item_id": [ITEM, ITEM]}), stream({USER: [ITEM]})):
            yield self.rank(content=body, headers={"Content-Type": ARROW})
        yield self.rank(content=stream({"item_id": [ITEM]}, {"user": {"id": [USER]}}), headers={"Content-Type": ARROW})
        for key in ("", self.secret[:-1], f"{self.secret}x"):
            yield self.rank(json=WHO, headers={"X-API-Key": key})


@pytest.fixture(scope="module")
def guarded(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    service = Guarded(repository, tmp_path_factory.mktemp("keys") / "keys.json")
    with service.client:
        yield service


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog


def discreet(guarded: Guarded, text: str) -> None:
    for secret in (USER, ITEM, guarded.secret, guarded.secret[:-1]):
        assert secret not in text


def test_errors_tell_nothing_of_our_insides(guarded: Guarded) -> None:
    statuses = set()
    for response in guarded.errors():
        assert response.status_code >= 400, response.text
        statuses.add(response.status_code)
        assert response.headers["content-type"] == "application/problem+json"
        assert not indiscretions(response.text)
        assert guarded.secret[:-1] not in response.text
    assert statuses == {400, 401, 404, 405, 406, 413, 415, 422, 504}


def test_a_failure_of_our_own_is_told_in_the_log_alone(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("/srv/models/weights.safetensors line 4")

    monkeypatch.setattr(OnnxBackend, "scores", broken)
    response = guarded.rank(json=WHO)
    assert response.status_code == 500
    assert response.json()["detail"] == "the service failed; its log says why"
    assert not indiscretions(response.text)
    assert "weights.safetensors line 4" in logged.text
    discreet(guarded, logged.text)


def test_neither_log_nor_metrics_tell_who_was_ranked_for_and_with_which_key(
    guarded: Guarded, logged: pytest.LogCaptureFixture
) -> None:
    assert guarded.rank(json=WHO).status_code == 200
    assert guarded.rank(json=WHO | {"explain": True, "layout": "columns"}).status_code == 200
    assert guarded.rank(content=stream({"item_id": [ITEM]}), headers={"Content-Type": ARROW}).status_code == 200
    list(guarded.errors())
    discreet(guarded, logged.text)
    discreet(guarded, guarded.client.get("/metrics").text)


def test_every_answer_is_what_it_says_and_is_not_kept(guarded: Guarded) -> None:
    for response in (guarded.rank(json=WHO), guarded.rank(json={}), guarded.client.get("/v2/health/live")):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["cache-control"] == "no-store"


def test_the_log_would_tell(logged: pytest.LogCaptureFixture) -> None:
    assert indiscretions('File "/srv/app.py", line 3, in f: pydantic.ValidationError') != []
    logging.getLogger("ranker.service").debug(USER)
    assert USER in logged.text
