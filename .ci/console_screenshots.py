"""Make the screenshots of docs/console.md: `python .ci/console_screenshots.py REPOSITORY` (needs Chromium).

Serves a repository, such as that of `ranker demo`, sends it requests for half a minute, and opens the pages.
"""

from __future__ import annotations

import base64
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.chromium import Page, open_browser  # noqa: E402
from tests.support.http_client import send_request  # noqa: E402
from tests.support.processes import running_service  # noqa: E402

OUTPUT = ROOT / "docs" / "console"
SHOTS = [
    ("models", 1280, 760, "light"),
    ("live", 1280, 1000, "light"),
    ("selection", 1280, 760, "dark"),
    ("try", 1280, 1560, "light"),
    ("live", 390, 844, "light"),
    ("models", 390, 844, "dark"),
    ("loop", 1280, 760, "light"),
]
"""View, width and height in pixels, and color scheme of each screenshot."""
TRAFFIC_SECONDS = 30.0
"""Seconds of requests before the first screenshot."""
READ_SECONDS = 3.0
"""Seconds in which a page reads the metrics at least once."""
RANK = """(() => {
  for (const [field, value] of [["user.id", "u7"], ["context.surface", "home"], ["context.hour", "9"],
      ["items[0].id", "v1"], ["items[1].id", "v2"], ["items[2].id", "v3"]]) {
    const input = document.querySelector(`[data-field="${field}"]`);
    input.value = value;
    input.dispatchEvent(new Event("input", {bubbles: true}));
  }
  document.querySelector("#try-form").requestSubmit();
})()"""


def send_requests(url: str, stop: threading.Event) -> None:
    """Send ten rank requests per second, one in nine of them invalid, and feedback, until the event is set."""
    number = 0
    while not stop.wait(0.1):
        number += 1
        items = [{"id": f"v{item}"} for item in range(30)]
        user, context = {"id": f"u{number % 50}"}, {"surface": "home", "hour": 9}
        body = {"request_id": f"r-{number}", "user": user, "context": context, "items": items}
        send_request(f"{url}/v1/rank", body if number % 9 else {"items": 1})
        events = [{"item": "v1", "labels": {"click": 1}}, {"item": "v2", "labels": {"click": 0}}]
        send_request(f"{url}/v1/feedback", {"request_id": f"r-{number}", "events": events})


def save(page: Page, path: Path, width: int, height: int, scheme: str) -> None:
    """Write a screenshot."""
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 720)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    threading.Event().wait(READ_SECONDS)
    path.write_bytes(base64.b64decode(page.call("Page.captureScreenshot")["data"]))


def main() -> None:
    """Make all screenshots."""
    repository, stop = Path(sys.argv[1]), threading.Event()
    OUTPUT.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_service(
            repository, threads=1, served_log=f"{folder}/served", feedback_dir=f"{folder}/feedback"
        ) as service,
        open_browser(Path(folder) / "profile") as page,
    ):
        traffic = threading.Thread(target=send_requests, args=(service.url, stop))
        traffic.start()
        try:
            page.open(f"{service.url}/console")
            page.wait_for("!!document.querySelector('#models table')")
            threading.Event().wait(TRAFFIC_SECONDS)
            page.run("document.getElementById('tab-try').click()")
            page.wait_for("!!document.querySelector('#try-form')")
            page.run(RANK)
            page.wait_for("!!document.querySelector('#results table')")
            for view, width, height, scheme in SHOTS:
                page.run(f"document.getElementById('tab-{view}').click()")
                save(page, OUTPUT / f"{view}-{width}-{scheme}.png", width, height, scheme)
        finally:
            stop.set()
            traffic.join()


if __name__ == "__main__":
    main()
