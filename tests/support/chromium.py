"""A headless Chromium that reaches only this machine, controlled by the DevTools protocol over a pipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_until

OPTIONS = [
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
"""Options for no window, no sandbox (not available to root), and no background traffic of the browser."""

PAGE_OPTIONS = [
    *OPTIONS,
    "--window-size=1200,1600",
    "--remote-debugging-pipe",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
"""Options for a page that the test controls through a pipe, and that can reach no other hosts."""


def chromium() -> str:
    """Return the path of Chromium, which is required in CI."""
    path = shutil.which("chromium")
    if path is None:
        message = "Chromium is not installed: apt-get install chromium"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    return path


class Browser:
    """A running browser; each page has cookies and storage of its own."""

    def __init__(self, commands: Any, messages: Any) -> None:
        self._commands, self._messages, self._last_id = commands, messages, 0

    @contextmanager
    def page(self) -> Iterator[Page]:
        """Open an empty page, and close it at the end."""
        context = {"browserContextId": self.call("Target.createBrowserContext")["browserContextId"]}
        target = self.call("Target.createTarget", url="about:blank", **context)["targetId"]
        yield Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        self.call("Target.disposeBrowserContext", **context)

    def call(self, method: str, page: Page | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol, if a page is given for this page, and return its result."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if page is not None:
            message["sessionId"] = page.session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = self._read()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            if page is not None and answer.get("sessionId") == page.session:
                page.handle(answer["method"], answer["params"])

    def _read(self) -> dict[str, Any]:
        data = b""
        while not data.endswith(b"\0"):
            byte = self._messages.read(1)
            assert byte, "the browser has ended"
            data += byte
        message: dict[str, Any] = json.loads(data[:-1])
        return message


class Page:
    """A page of a browser.

    Attributes:
        session: id of the page in messages.
        requested: URLs that the page has requested.
        errors: messages of its console, such as violations of its content security policy, and uncaught exceptions.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self.session = browser, session
        self.requested: list[str] = []
        self.errors: list[str] = []
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """Evaluate a JavaScript expression and return its value; exceptions fail the test."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Poll a JavaScript expression and return its first true value."""
        return wait_until(lambda: self.run(script), lambda: f"{script}: {self.run('document.body.innerText')}")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol for this page and return its result."""
        return self._browser.call(method, self, **parameters)

    def handle(self, event: str, parameters: dict[str, Any]) -> None:
        """Keep what a message reports about this page."""
        if event == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])
        elif event == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start a browser, and end it at the end.

    Args:
        profile: folder for the profile of the browser.
    """
    command_reader, command_writer = os.pipe()
    message_reader, message_writer = os.pipe()

    def connect_pipes() -> None:  # the browser reads commands from descriptor 3 and writes messages to 4
        commands, messages = os.dup(command_reader), os.dup(message_writer)
        os.dup2(commands, 3)
        os.dup2(messages, 4)

    process = subprocess.Popen(
        [chromium(), *PAGE_OPTIONS, f"--user-data-dir={profile}", "about:blank"],
        preexec_fn=connect_pipes,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(command_reader)
    os.close(message_writer)
    try:
        with os.fdopen(command_writer, "wb") as commands, os.fdopen(message_reader, "rb") as messages:
            yield Browser(commands, messages)
    finally:
        process.kill()
        process.wait()
