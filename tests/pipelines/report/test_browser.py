"""The report in a real browser: no page wider than a phone, no request, every section laid out."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipelines.report.page import write_report
from tests.pipelines.report.conftest import write_run

pytestmark = pytest.mark.parts

QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
"""No window, no sandbox (which root cannot have), and no traffic of the browser's own."""

WRAPPER = """<!DOCTYPE html><title>wrapper</title>
<iframe src="/page.html" style="width:{width}px;height:800px;border:0"></iframe><pre id="facts"></pre>
<script>
addEventListener("load", () => setTimeout(() => {{
  const frame = document.querySelector("iframe").contentWindow, page = frame.document;
  const boxes = [...page.querySelectorAll("section")].map(s => [s.id, s.getBoundingClientRect().height]);
  const small = [...page.querySelectorAll(".plot text")].map(t => t.getBoundingClientRect().height).filter(h => h > 0);
  const cut = [...page.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth);
  document.querySelector("#facts").textContent = JSON.stringify({{
    width: page.documentElement.clientWidth, needed: page.documentElement.scrollWidth,
    wide: [...page.querySelectorAll("body *")].filter(e => !e.closest(".scroll, svg, .unseen")
      && e.getBoundingClientRect().right > page.documentElement.clientWidth + 1).map(e => e.outerHTML.slice(0, 80)),
    cut: cut.length,
    unshaded: cut.filter(e => getComputedStyle(e).backgroundAttachment !== "local, scroll").map(e => e.ariaLabel),
    covering: cut.flatMap(e => [...e.querySelectorAll("tr, th, td")]).filter(e => {{
      const style = getComputedStyle(e);
      return style.position !== "sticky" && /^rgb[(]|^color[(][^/]*$/.test(style.backgroundColor);
    }}).map(e => e.outerHTML.slice(0, 80)),
    sections: Object.fromEntries(boxes), smallest: Math.min(...small),
    requests: frame.performance.getEntriesByType("resource").map(entry => entry.name),
  }});
}}, 100));
</script>"""


@pytest.fixture(scope="module")
def browser() -> str:
    """Chromium; in CI it must be there."""
    found = shutil.which("chromium")
    if found is None:
        message = "Chromium is not installed: apt-get install chromium"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    return found


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The folder's address, and the paths that are asked for."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def looked_at(browser: str, folder: Path, width: int) -> dict[str, Any]:
    """What a browser finds in ``page.html`` of this folder, in a window of this width."""
    (folder / "wrapper.html").write_text(WRAPPER.format(width=width))
    with served(folder) as (address, asked):
        command = [browser, *QUIET, f"--user-data-dir={folder / 'profile'}", f"--window-size={width + 200},900"]
        command += ["--virtual-time-budget=10000", "--dump-dom", f"{address}/wrapper.html"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (facts,) = re.findall(r'<pre id="facts">(.*?)</pre>', done.stdout, re.DOTALL)
    assert facts, f"the page did not load: {done.stderr[-500:]}"
    return {**json.loads(html.unescape(facts)), "asked": set(asked) - {"/wrapper.html", "/page.html", "/favicon.ico"}}


@pytest.mark.parametrize("width", [360, 390, 1280])
@pytest.mark.parametrize(("tasks", "experts"), [(5, 8), (50, 64)])
def test_the_page_fits_and_needs_nothing_else(
    browser: str, tmp_path: Path, width: int, tasks: int, experts: int
) -> None:
    write_report(write_run(tmp_path / "run", tasks=tasks, experts=experts).path, tmp_path / "page.html")
    found = looked_at(browser, tmp_path, width)
    assert found["width"] in range(width - 20, width + 1)  # a scroll bar may take some of it
    assert found["needed"] <= found["width"]
    assert found["wide"] == []
    assert found["requests"] == []
    assert found["asked"] == set()
    assert len(found["sections"]) == 10
    assert min(found["sections"].values()) > 100
    assert found["smallest"] > 8


def test_a_table_that_is_cut_off_is_shaded_there(browser: str, tmp_path: Path) -> None:
    """Nothing but the column that stays in sight lies over the shade."""
    write_report(write_run(tmp_path / "run").path, tmp_path / "page.html")
    found = looked_at(browser, tmp_path, 390)
    assert found["cut"] > 2
    assert found["unshaded"] == []
    assert found["covering"] == []


def test_a_page_that_is_too_wide_and_asks_for_more_is_noticed(browser: str, tmp_path: Path) -> None:
    page = '<body><section id="a"><p style="width:700px">wide</p><img src="/picture.png"></section>'
    (tmp_path / "page.html").write_text(f"<!DOCTYPE html>{page}")
    found = looked_at(browser, tmp_path, 390)
    assert found["needed"] > found["width"]
    assert len(found["wide"]) == 1
    assert found["asked"] == {"/picture.png"}


def test_it_prints(browser: str, tmp_path: Path) -> None:
    page, pdf = tmp_path / "page.html", tmp_path / "page.pdf"
    write_report(write_run(tmp_path / "run").path, page)
    command = [browser, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--no-pdf-header-footer"]
    subprocess.run([*command, f"--print-to-pdf={pdf}", page.as_uri()], check=True, capture_output=True, timeout=120)
    pages = re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())
    assert len(pages) in range(3, 12)
