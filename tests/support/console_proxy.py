"""A proxy before a service that records rank requests and changes answers, such as to names that contain HTML."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from tests.support.ports import HOST
from tests.support.waiting import TIMEOUT_SECONDS

API = "/console/api/"
SINGLE_HOP = {"connection", "content-length", "host", "transfer-encoding", "accept-encoding"}


class ConsoleProxy:
    """Settings and records of the proxy.

    Args:
        service: URL of the service.
        prefix: path below which the proxy has the service, such as "/ranker".

    Attributes:
        edit: function that changes a JSON answer of the API: (path below ``API``, answer) to answer.
        ranked: bodies of the rank requests.
        url: URL of the proxy, with the prefix.
    """

    def __init__(self, service: str, prefix: str) -> None:
        self.service, self.prefix = service, prefix
        self.edit: Callable[[str, Any], Any] = lambda _, answer: answer
        self.ranked: list[dict[str, Any]] = []
        self.url = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, proxy: ConsoleProxy, *arguments: Any) -> None:
        self.proxy = proxy
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self.forward()

    def do_POST(self) -> None:
        self.forward(self.rfile.read(int(self.headers["Content-Length"])))

    def forward(self, body: bytes | None = None) -> None:
        """Send the request to the service, and its response to the client."""
        if not self.path.startswith(self.proxy.prefix):
            self.send_error(404)
            return
        path = self.path.removeprefix(self.proxy.prefix)
        if body is not None and self.path.endswith("/rank"):
            self.proxy.ranked.append(json.loads(body))
        connection = http.client.HTTPConnection(urlsplit(self.proxy.service).netloc, timeout=TIMEOUT_SECONDS)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in SINGLE_HOP}
        try:
            connection.request(self.command, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except OSError:
            self.close_connection = True  # as if the service could not be reached
            return
        finally:
            connection.close()
        if path.startswith(API) and response.headers.get_content_type() == "application/json":
            content = json.dumps(self.proxy.edit(path.removeprefix(API), json.loads(content))).encode()
        self.send_response(response.status)
        for name, value in response.headers.items():
            if name.lower() not in SINGLE_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Write no log."""


@contextmanager
def console_proxy(service: str, prefix: str = "") -> Iterator[ConsoleProxy]:
    """Run a proxy before a service, see ``ConsoleProxy``."""
    proxy = ConsoleProxy(service, prefix)
    with ThreadingHTTPServer((HOST, 0), partial(_Handler, proxy)) as server:
        server.daemon_threads = True
        Thread(target=server.serve_forever, daemon=True).start()
        proxy.url = f"http://{HOST}:{server.server_address[1]}{prefix}"
        try:
            yield proxy
        finally:
            server.shutdown()
