"""Files of the console: what browsers get, and that they load nothing from other hosts."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings

FOLDER = Path(str(files("service"))) / "console" / "static"
FILES = sorted(path.name for path in FOLDER.iterdir())
MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def test_console_redirects_to_its_folder(client: TestClient) -> None:
    response = client.get("/console", follow_redirects=False)
    assert (response.status_code, response.headers["location"]) == (307, "console/")
    page = client.get("/console")
    assert page.headers["content-type"].startswith("text/html")
    assert page.text == (FOLDER / "index.html").read_text()


@pytest.mark.parametrize("name", FILES)
def test_file_has_its_media_type_and_a_policy_that_allows_only_this_host(client: TestClient, name: str) -> None:
    response = client.get(f"/console/{name}")
    assert response.content == (FOLDER / name).read_bytes()
    assert response.headers["content-type"].split(";")[0] == MEDIA_TYPES[name.rpartition(".")[2]]
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert not re.search(r"unsafe-eval|\*|https?:", policy)
    again = client.get(f"/console/{name}", headers={"If-None-Match": response.headers["etag"]})
    assert again.headers["etag"] == response.headers["etag"]


@pytest.mark.parametrize("name", FILES)
def test_file_names_no_other_host(name: str) -> None:
    namespaces = {"http://www.w3.org/2000/svg"}  # a name, from which nothing is loaded
    addresses = re.findall(r"(?:https?:)?//[\w-]+\.[\w./-]+", (FOLDER / name).read_text())
    assert set(addresses) <= namespaces


def test_addresses_of_the_page_are_relative() -> None:
    addresses = re.findall(r"(?:href|src)=\"([^\"]*)\"", (FOLDER / "index.html").read_text())
    assert {"app.js", "console.css", "icon.svg"} <= set(addresses)
    assert [address for address in addresses if address.startswith("/")] == []


@pytest.mark.parametrize("path", ["nothing.js", "..%2fconsole_pages.py", "%2e%2e/app.py", "static/index.html", "api"])
def test_unknown_file_is_404(client: TestClient, path: str) -> None:
    response = client.get(f"/console/{path}")
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"


def test_console_is_only_on_the_operations_port(repository: Path) -> None:
    app = create_app(Settings(repository=repository), operations_port=8001)
    with TestClient(app, "http://ranker:8000") as main:
        assert main.get("/console/").status_code == main.get("/console/api/models").status_code == 404
        operations = TestClient(app, "http://ranker:8001")
        assert operations.get("/console/").status_code == operations.get("/console/api/models").status_code == 200
