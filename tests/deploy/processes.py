"""Runs the service, a client and a Prometheus server as processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

TIMEOUT = 120
"""Seconds that a single step may take on a busy machine."""


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def wait_until(condition: Callable[[], object], description: str) -> None:
    """Poll a condition.

    Raises:
        AssertionError: The condition does not hold within ``TIMEOUT`` seconds.
    """
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT} s: {description}"
        time.sleep(0.1)


def request_status(url: str, body: bytes | None = None) -> int:
    """Send a GET request, or a POST request with a JSON body; return the status, or 0 if the connection fails."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            response.read()
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


class Process:
    """A child process whose output is appended to a log file."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file)

    def serves(self, url: str) -> bool:
        """Whether a GET request to the URL returns 200.

        Raises:
            AssertionError: The process has exited.
        """
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        return request_status(url) == 200

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()


class Service:
    """``ranker serve`` with a separate operations port."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self.repository = repository
        self.port, self.operations_port = free_port(), free_port()
        self._command = [sys.executable, "-m", "pipelines.cli", "serve", str(repository)]
        self._command += ["--port", str(self.port), "--operations-port", str(self.operations_port)]
        self._log = folder / "service.log"
        self._process: Process | None = None

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def start(self) -> None:
        process = self._process = Process(self._command, self._log)
        wait_until(lambda: process.serves(self.url("/v2/health/ready")), "the service is ready")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None


class LoadGenerator:
    """A client thread that sends one request after another until it is stopped."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        self._url, self._body = url, json.dumps(body).encode()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send_requests)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _send_requests(self) -> None:
        while not self._stopped.wait(0.02):
            request_status(self._url, self._body)


class Prometheus:
    """A Prometheus server with the configuration and rules of the project, but short intervals.

    Args:
        config_folder: Folder that contains ``prometheus.yml`` and ``rules.yml``.
        target_port: Port to scrape instead of the configured targets.
        folder: Folder for the data and log of the server.
    """

    def __init__(self, config_folder: Path, target_port: int, folder: Path) -> None:
        config = yaml.safe_load((config_folder / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        (scrape,) = config["scrape_configs"]
        del scrape["dns_sd_configs"]
        scrape["static_configs"] = [{"targets": [f"127.0.0.1:{target_port}"]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        rules = yaml.safe_load((config_folder / "rules.yml").read_text())
        for rule in (rule for group in rules["groups"] for rule in group["rules"] if "for" in rule):
            rule["for"] = "1s"
        (folder / "rules.yml").write_text(yaml.safe_dump(rules))
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        self._process = Process([*command, f"--web.listen-address=127.0.0.1:{port}"], folder / "prometheus.log")
        wait_until(lambda: self._process.serves(f"{self._url}/-/ready"), "Prometheus is ready")

    def stop(self) -> None:
        self._process.stop()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Evaluate a PromQL expression at the current time and return its series."""
        parameters = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{parameters}", timeout=30) as response:
            return list(json.loads(response.read())["data"]["result"])

    def firing(self, alert: str) -> bool:
        return bool(self.query(f'ALERTS{{alertname="{alert}",alertstate="firing"}}'))
