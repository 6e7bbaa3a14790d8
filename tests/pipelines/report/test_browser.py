"""Tests of the report in Chromium: it fits a phone, sends no requests, and shows every section."""

from __future__ import annotations

import html
import json
import re
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
from tests.support import chromium

WRAPPER = """<!DOCTYPE html><title>wrapper</title>
<iframe src="/page.html" style="width:{width}px;height:800px;border:0"></iframe><pre id="results"></pre>
<script>
addEventListener("load", () => setTimeout(() => {{
  const frame = document.querySelector("iframe").contentWindow, page = frame.document;
  const boxes = [...page.querySelectorAll("section")].map(s => [s.id, s.getBoundingClientRect().height]);
  const small = [...page.querySelectorAll(".plot text")].map(t => t.getBoundingClientRect().height).filter(h => h > 0);
  const cut = [...page.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth);
  document.querySelector("#results").textContent = JSON.stringify({{
    width: page.documentElement.clientWidth, needed: page.documentElement.scrollWidth,
    wide: [...page.querySelectorAll("body *")].filter(e => !e.closest(".scroll, svg, .visually-hidden")
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
    """Return the path of Chromium, which is required in CI."""
    return chromium.chromium()


@contextmanager
def serve_folder(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder over HTTP; yield its address and the list of requested paths."""
    requested: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            requested.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", requested
    server.shutdown()
    server.server_close()


def measure_page(browser: str, folder: Path, width: int) -> dict[str, Any]:
    """Open ``page.html`` of a folder in a frame of the given width and return its measurements."""
    (folder / "wrapper.html").write_text(WRAPPER.format(width=width))
    with serve_folder(folder) as (address, requested):
        command = [
            browser,
            *chromium.OPTIONS,
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width + 200},900",
        ]
        command += ["--virtual-time-budget=10000", "--dump-dom", f"{address}/wrapper.html"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (results,) = re.findall(r'<pre id="results">(.*?)</pre>', done.stdout, re.DOTALL)
    assert results, f"the page did not load: {done.stderr[-500:]}"
    return {
        **json.loads(html.unescape(results)),
        "requested": set(requested) - {"/wrapper.html", "/page.html", "/favicon.ico"},
    }


@pytest.mark.parametrize(
    ("width", "tasks", "experts"),
    [
        (360, 50, 64),
        (1280, 5, 8),
        *(pytest.param(*s, marks=pytest.mark.nightly) for s in ((390, 5, 8), (1280, 50, 64))),
    ],
)
def test_page_at_any_width_fits_and_loads_nothing_else(
    browser: str, tmp_path: Path, width: int, tasks: int, experts: int
) -> None:
    write_report(write_run(tmp_path / "run", tasks=tasks, experts=experts).path, tmp_path / "page.html")
    layout = measure_page(browser, tmp_path, width)
    assert layout["width"] in range(width - 20, width + 1)  # a scroll bar may take some of it
    assert layout["needed"] <= layout["width"]
    assert layout["wide"] == []
    assert layout["requests"] == []
    assert layout["requested"] == set()
    assert len(layout["sections"]) == 12
    assert min(layout["sections"].values()) > 100
    assert layout["smallest"] > 8


def test_page_shades_tables_that_are_cut_off(browser: str, tmp_path: Path) -> None:
    """Only the sticky first column may cover the shade."""
    write_report(write_run(tmp_path / "run").path, tmp_path / "page.html")
    layout = measure_page(browser, tmp_path, 390)
    assert layout["cut"] > 2
    assert layout["unshaded"] == []
    assert layout["covering"] == []


def test_measure_page_of_a_wide_page_with_requests_detects_both(browser: str, tmp_path: Path) -> None:
    page = '<body><section id="a"><p style="width:700px">wide</p><img src="/picture.png"></section>'
    (tmp_path / "page.html").write_text(f"<!DOCTYPE html>{page}")
    layout = measure_page(browser, tmp_path, 390)
    assert layout["needed"] > layout["width"]
    assert len(layout["wide"]) == 1
    assert layout["requested"] == {"/picture.png"}


def test_page_prints_on_a_few_sheets(browser: str, tmp_path: Path) -> None:
    page, pdf = tmp_path / "page.html", tmp_path / "page.pdf"
    write_report(write_run(tmp_path / "run").path, page)
    command = [browser, *chromium.OPTIONS, f"--user-data-dir={tmp_path / 'profile'}", "--no-pdf-header-footer"]
    subprocess.run([*command, f"--print-to-pdf={pdf}", page.as_uri()], check=True, capture_output=True, timeout=120)
    pages = re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())
    assert len(pages) in range(3, 12)
