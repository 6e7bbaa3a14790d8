"""The documentation page: complete without other hosts, and its operations can be tried."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.http.auth.keys import create_key
from tests.support.chromium import Page, open_browser
from tests.support.ports import HOST
from tests.support.processes import running_service

RANK = "#operations-ranking-rank_v1_rank_post"
SET_BODY = """(() => {{
  const area = document.querySelector("{operation} textarea.body-param__text");
  Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(area, {body});
  area.dispatchEvent(new Event("input", {{bubbles: true}}));
}})()"""
"""Sets the body of an operation as a user does: React ignores assignments to ``value``."""


def click(page: Page, selector: str) -> None:
    page.wait_for(f"!!document.querySelector({json.dumps(selector)})")
    page.run(f"document.querySelector({json.dumps(selector)}).click()")


def try_operation(page: Page, operation: str, body: Any = None) -> tuple[str, str]:
    """Open an operation, try it out, and return the status and body of the response that the page shows."""
    click(page, f"{operation} .opblock-summary-control")
    click(page, f"{operation} .try-out__btn")
    if body is not None:
        page.wait_for(f"!!document.querySelector('{operation} textarea.body-param__text')")
        page.run(SET_BODY.format(operation=operation, body=json.dumps(json.dumps(body))))
    click(page, f"{operation} .execute")
    status = page.wait_for(
        f"document.querySelector('{operation} .live-responses-table tbody .response-col_status')?.innerText"
    )
    text = page.run(
        f"document.querySelector('{operation} .live-responses-table tbody .response-col_description').innerText"
    )
    return status.split()[0], text


def test_page_names_only_files_of_the_service(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; ")
    assert "http" not in page.text
    files = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(files) == 4
    for name in files:
        response = client.get(f"/{name}")
        assert response.status_code == 200
        assert len(response.content) > 50
        assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["other.js", "..%2F__init__.py", "%2e%2e/__init__.py", "swagger-ui.css/x"])
def test_other_files_of_the_package_are_not_served(client: TestClient, name: str) -> None:
    assert client.get(f"/docs/{name}").status_code == 404


def test_page_shows_and_tries_operations_without_other_hosts(
    repository: Path, request_body: dict[str, Any], tmp_path: Path
) -> None:
    with (
        running_service(repository, threads=1) as service,
        open_browser(tmp_path) as browser,
        browser.page() as page,
    ):
        page.open(f"{service.url}/docs")
        operations = page.wait_for("[...document.querySelectorAll('.opblock-summary-path')].map(e => e.innerText)")
        assert {"/v1/rank", "/v1/models", "/v1/feedback", "/metrics", "/"} <= {
            path.replace("\u200b", "") for path in operations
        }
        status, text = try_operation(page, RANK, request_body)
        assert status == "200"
        assert '"model": "feed"' in text
        assert all(url.startswith((f"{service.url}/", "data:", "about:")) for url in page.requested)
        assert f"{service.url}/v1/rank" in page.requested
        assert page.errors == []


@pytest.mark.nightly(short="test_page_shows_and_tries_operations_without_other_hosts")
def test_page_authorizes_requests_with_a_key_and_documents_the_operations_port(
    repository: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    secret = create_key(keys, "browser", ("admin",))
    options = ["--keys", str(keys), "--operations-port", "0"]
    with (
        running_service(repository, options, threads=1) as service,
        open_browser(tmp_path / "profile") as browser,
        browser.page() as page,
    ):
        operations = f"http://{HOST}:{service.operations_port}"
        page.open(f"{operations}/docs")
        index = "#operations-repository-list_versions_v2_repository_index_post"
        assert try_operation(page, index, {})[0] == "401"
        click(page, ".btn.authorize")
        page.wait_for("!!document.querySelector('.auth-container input')")
        page.run(
            "(() => { const input = document.querySelector('.auth-container input');"
            "Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(input, "
            f"{json.dumps(secret)}); input.dispatchEvent(new Event('input', {{bubbles: true}})); }})()"
        )
        click(page, ".auth-btn-wrapper .authorize")
        click(page, ".btn-done")
        click(page, f"{index} .execute")
        response = f"document.querySelector('{index} .live-responses-table tbody .response-col_description')"
        assert page.wait_for(f"{response}.innerText.includes('READY')")
        assert all(url.startswith((f"{operations}/", "data:", "about:")) for url in page.requested)
        assert service.get("/docs").startswith(b"HTTP/1.1 200 ")
