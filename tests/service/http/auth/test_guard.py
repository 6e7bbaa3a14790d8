"""API keys over HTTP: which requests need which scope, how others are rejected, on one port and on two."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.http.auth.guard import key_from_headers, required_scope
from service.http.auth.keys import CHECK_SECONDS, Scope, create_key, revoke_key
from service.settings import Settings

BODY: dict[str, Any] = {"items": {"id": ["v1"]}}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.json"


@pytest.fixture(scope="module")
def secrets(file: Path) -> dict[str, str]:
    """Map each scope to a key with only that scope, and "expired" to an expired key with all scopes."""
    secrets: dict[str, str] = {scope: create_key(file, scope, (scope,)) for scope in get_args(Scope)}
    secrets["expired"] = create_key(file, "expired", get_args(Scope), datetime.now(UTC) - timedelta(seconds=1))
    return secrets


@pytest.fixture(scope="module")
def protected(repository: Path, file: Path, secrets: dict[str, str]) -> Iterator[TestClient]:
    """A client of a service that requires keys."""
    with TestClient(create_app(Settings(repository=repository, keys=file)), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def two_ports(repository: Path) -> Iterator[tuple[TestClient, TestClient]]:
    """Clients of the main port and of the operations port."""
    app = create_app(Settings(repository=repository), operations_port=8001)
    with TestClient(app, "http://ranker:8000") as main:
        yield main, TestClient(app, "http://ranker:8001")


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_ranking_with_a_key_of_scope_rank_returns_200(protected: TestClient, secrets: dict[str, str]) -> None:
    for headers in (bearer(secrets["rank"]), {"X-API-Key": secrets["rank"]}):
        assert protected.post("/v1/rank", json=BODY, headers=headers).status_code == 200
        assert protected.get("/v2/models/feed", headers=headers).status_code == 200


@pytest.mark.parametrize("path", ["/v1/rank", "/v1/models/nope/rank", "/nowhere", "/metrics/", "//v1/rank"])
def test_request_without_a_key_returns_401(protected: TestClient, path: str) -> None:
    response = protected.post(path, content=b"{", headers={"Content-Type": "application/json"})
    assert response.status_code == 401
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["www-authenticate"] == 'Bearer realm="ranker"'
    assert "send an API key" in response.json()["detail"]


@pytest.mark.parametrize(("name", "detail"), [("unknown", "not known"), ("expired", "expired on 2")])
def test_ranking_with_an_unknown_or_expired_key_returns_401(
    protected: TestClient, secrets: dict[str, str], name: str, detail: str
) -> None:
    response = protected.post("/v1/rank", json=BODY, headers=bearer(secrets.get(name, "ranker_guess")))
    assert response.status_code == 401
    assert detail in response.json()["detail"]
    assert 'error="invalid_token"' in response.headers["www-authenticate"]
    assert "ranker_guess" not in response.text


@pytest.mark.parametrize("scope", ["feedback", "admin"])
def test_ranking_with_a_key_of_another_scope_returns_403(
    protected: TestClient, secrets: dict[str, str], scope: str
) -> None:
    response = protected.post("/v1/rank", json=BODY, headers=bearer(secrets[scope]))
    assert response.status_code == 403
    assert response.json()["detail"] == f"this API key lacks the scope 'rank': it has {scope}"
    assert 'error="insufficient_scope", scope="rank"' in response.headers["www-authenticate"]


def test_rejected_request_is_counted_and_echoes_the_request_id(repository: Path, file: Path) -> None:
    with TestClient(create_app(Settings(repository=repository, keys=file))) as client:
        response = client.post("/v1/rank", json=BODY, headers={"X-Request-ID": "r-1"})
        assert response.headers["x-request-id"] == "r-1"
        assert 'ranker_rejections_total{reason="unauthorised"} 1.0' in client.get("/metrics").text


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/metrics", "/docs", "/openapi.json"])
def test_public_path_needs_no_key(protected: TestClient, path: str) -> None:
    assert protected.get(path).status_code == 200


def test_admin_operation_needs_scope_admin_and_logs_the_name_of_the_key(
    protected: TestClient, secrets: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    path = "/v2/repository/index%0Aforged"
    assert protected.post(path).status_code == 401
    assert protected.post(path, headers=bearer(secrets["rank"])).status_code == 403
    with caplog.at_level("INFO", "ranker.service"):
        protected.post(path, headers=bearer(secrets["admin"]))
    assert r"POST '/v2/repository/index\nforged' by API key admin" in caplog.messages
    assert secrets["admin"] not in caplog.text


def test_created_and_revoked_keys_take_effect_without_a_restart(repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    old = create_key(file, "old", ("rank",))
    with TestClient(create_app(Settings(repository=repository, keys=file))) as client:
        assert client.post("/v1/rank", json=BODY, headers=bearer(old)).status_code == 200
        new = create_key(file, "new", ("rank",))
        revoke_key(file, "old")
        time.sleep(CHECK_SECONDS + 0.05)
        assert client.post("/v1/rank", json=BODY, headers=bearer(old)).status_code == 401
        assert client.post("/v1/rank", json=BODY, headers=bearer(new)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([], None),
        ([(b"authorization", b"Basic eA==")], None),
        ([(b"authorization", b"Bearer")], None),
        ([(b"authorization", b"bEaReR  k ")], b"k"),
        ([(b"authorization", b"Basic eA=="), (b"x-api-key", b"k")], b"k"),
        ([(b"authorization", b"Bearer b"), (b"x-api-key", b"k")], b"k"),
        ([(b"x-api-key", b"")], b""),
    ],
)
def test_key_from_headers_prefers_x_api_key_to_the_bearer_token(
    headers: list[tuple[bytes, bytes]], key: bytes | None
) -> None:
    assert key_from_headers(headers) == key


def test_openapi_document_states_the_scope_of_each_operation(protected: TestClient) -> None:
    document = protected.get("/openapi.json").json()
    assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
    scopes = {
        path: operation.get("security", [{"bearer": [None]}])[0]["bearer"][0]
        for path, operations in document["paths"].items()
        for operation in operations.values()
    }
    assert scopes["/v1/rank"] == scopes["/v2/models/{model}"] == "rank"
    assert scopes["/metrics"] is scopes["/v2/health/ready"] is None
    for path, scope in scopes.items():
        assert required_scope(path.format(model="feed", version="1")) == scope
        has_errors = document["paths"][path].popitem()[1]["responses"].keys() >= {"401", "403"}
        assert has_errors == (scope is not None)


def test_openapi_document_of_a_service_without_keys_has_no_security(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    assert "securitySchemes" not in document["components"]
    assert not any("security" in operation for path in document["paths"].values() for operation in path.values())


def test_two_ports_metrics_include_requests_of_the_main_port(two_ports: tuple[TestClient, TestClient]) -> None:
    main, operations = two_ports
    main.post("/v1/models/nope/rank", json=BODY)
    assert 'status="404"' in operations.get("/metrics").text


def test_two_ports_have_separate_openapi_documents(two_ports: tuple[TestClient, TestClient]) -> None:
    main, operations = (set(client.get("/openapi.json").json()["paths"]) for client in two_ports)
    assert main & operations == {"/", "/v2/health/live", "/v2/health/ready"}
    assert "/metrics" in operations - main
    assert "/v1/rank" in main - operations
