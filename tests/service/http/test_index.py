"""``GET /`` and ``GET /v1/models``."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from pipelines.jobs.publish import publish
from pipelines.jobs.release import change_release
from service.app import create_app
from service.http.auth.keys import create_key
from service.settings import Settings

OPERATIONS = "http://testserver:8001"


def test_index_links_to_operations_that_exist(client: TestClient) -> None:
    index = client.get("/").json()
    assert (index["name"], index["version"]) == ("dselect-ranker", version("dselect-ranker"))
    assert "operations_port" not in index
    paths = client.get("/openapi.json").json()["paths"]
    for link in set(index["links"].values()) - {"/docs", "/openapi.json", "/console"}:
        assert link in paths
    for link in index["links"].values():
        assert client.get(link).status_code in (200, 405)  # 405: the operation is a POST request
    assert {"/metrics", "/v2/repository/index", "/v1/models"} <= set(index["links"].values())


def test_index_of_each_port_links_to_the_operations_of_that_port(repository: Path) -> None:
    with TestClient(create_app(Settings(repository=repository), operations_port=8001)) as client:
        index = client.get("/").json()
        assert index["operations_port"] == 8001
        assert "/metrics" not in index["links"].values()
        operations = client.get(f"{OPERATIONS}/").json()
        assert "operations_port" not in operations
        assert "/v1/rank" not in operations["links"].values()
        for base, links in (("", index["links"]), (OPERATIONS, operations["links"])):
            for link in links.values():
                assert client.get(f"{base}{link}").status_code in (200, 405)


def test_index_needs_no_key_and_the_list_of_models_needs_one(repository: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    rank, feedback = create_key(keys, "a", ("rank",)), create_key(keys, "b", ("feedback",))
    with TestClient(create_app(Settings(repository=repository, keys=keys))) as client:
        assert client.get("/").status_code == 200
        assert client.get("/docs").status_code == client.get("/docs/swagger-ui.css").status_code == 200
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"X-API-Key": feedback}).status_code == 403
        assert client.get("/v1/models", headers={"X-API-Key": rank}).status_code == 200
        document = client.get("/openapi.json").json()["paths"]
        assert "security" not in document["/"]["get"]
        assert document["/v1/models"]["get"]["security"] == [{"bearer": ["rank"]}, {"header": ["rank"]}]


def test_list_of_models_names_versions_and_roles(repo: Path, bundle: Path) -> None:
    publish(bundle, repo, "shop")
    change_release(repo, "feed", {"version": 1, "canary": {"version": 2, "weight": 0.25}})
    with TestClient(create_app(Settings(repository=repo, default_model="shop"))) as client:
        feed, shop = client.get("/v1/models").json()["models"]
    assert feed == {
        "name": "feed",
        "ready": True,
        "default": False,
        "version": "1",
        "canary": "2",
        "canary_weight": 0.25,
        "shadow": None,
    }
    assert (shop["name"], shop["default"], shop["version"]) == ("shop", True, "1")
    assert (shop["canary"], shop["canary_weight"], shop["shadow"]) == (None, None, None)


def test_list_of_models_names_a_model_that_cannot_be_served(repo: Path, bundle: Path) -> None:
    publish(bundle, repo, "shop")
    (repo / "shop" / "1" / "manifest.json").write_text("{}")
    with TestClient(create_app(Settings(repository=repo))) as client:
        feed, shop = client.get("/v1/models").json()["models"]
    assert (feed["name"], feed["ready"]) == ("feed", True)
    assert (shop["name"], shop["ready"], shop["version"]) == ("shop", False, None)


@pytest.mark.parametrize("path", ["/", "/v1/models", "/docs"])
def test_index_rejects_other_methods(client: TestClient, path: str) -> None:
    assert client.post(path).status_code == 405
