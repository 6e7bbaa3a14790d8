"""The console of a running service in a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chromium import Browser, Page, open_browser
from tests.support.console_proxy import ConsoleProxy, console_proxy
from tests.support.processes import ServiceProcess, running_service

REPORT = """<!DOCTYPE html><style>h1 { color: rgb(1, 2, 3) }</style><h1 style="margin-top: 7px">Report of the run</h1>
<script>parent.hacked = 1</script><img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=" onload="parent.hacked = 1">"""
"""A report with styles, which the page keeps, and with scripts, which it removes."""


@pytest.fixture(scope="module")
def service(both: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service of two versions, of which the second has a report."""
    repository = shutil.copytree(both, tmp_path_factory.mktemp("console") / "repository")
    (repository / "feed" / "2" / "report.html").write_text(REPORT)
    with running_service(repository, threads=1) as service:
        yield service


@pytest.fixture
def console(service: ServiceProcess) -> Iterator[ConsoleProxy]:
    """A proxy before the service, which a test may let change answers."""
    with console_proxy(service.url) as console:
        yield console


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.page() as page:
        yield page
