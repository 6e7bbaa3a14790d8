"""A service and a Prometheus that scrapes it, as processes."""

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

WAIT = 120
"""Seconds that something may take on a busy machine."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def until(happened: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT
    while not happened():
        assert time.monotonic() < deadline, f"not in {WAIT} s: {what}"
        time.sleep(0.1)


def status(url: str, body: bytes | None = None) -> int:
    """Of the answer to a request, with a body of JSON or without one; 0 if nobody answers."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


class Process:
    """A program that is stopped at the end, its words in a file."""

    def __init__(self, command: list[str], words: Path) -> None:
        self._words = words
        with words.open("ab") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file)

    def answers(self, url: str) -> bool:
        """Whether this URL is answered with 200.

        Raises:
            AssertionError: the process ended.
        """
        assert self._process.poll() is None, self._words.read_text()[-2000:]
        return status(url) == 200

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()


class Service:
    """``ranker serve`` with two ports."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self.repository = repository
        self.port, self.operations = free_port(), free_port()
        self._command = [sys.executable, "-m", "pipelines.cli", "serve", str(repository)]
        self._command += ["--port", str(self.port), "--operations-port", str(self.operations)]
        self._words = folder / "service.log"
        self._process: Process | None = None

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def start(self) -> None:
        process = self._process = Process(self._command, self._words)
        until(lambda: process.answers(self.url("/v2/health/ready")), "the service is ready")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None


class Load:
    """A client that asks again and again, until it is told to stop."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        self._url, self._body = url, json.dumps(body).encode()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._stopped.wait(0.02):
            status(self._url, self._body)


class Prometheus:
    """A Prometheus with our configuration and rules, all of whose times are short.

    Args:
        deploy: folder of the configuration.
        target: port that is scraped instead of the configured ones.
        folder: for its files.
    """

    def __init__(self, deploy: Path, target: int, folder: Path) -> None:
        config = yaml.safe_load((deploy / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        (scrape,) = config["scrape_configs"]
        del scrape["dns_sd_configs"]
        scrape["static_configs"] = [{"targets": [f"127.0.0.1:{target}"]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        rules = yaml.safe_load((deploy / "rules.yml").read_text())
        for rule in (rule for group in rules["groups"] for rule in group["rules"] if "for" in rule):
            rule["for"] = "1s"
        (folder / "rules.yml").write_text(yaml.safe_dump(rules))
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        self._process = Process([*command, f"--web.listen-address=127.0.0.1:{port}"], folder / "prometheus.log")
        until(lambda: self._process.answers(f"{self._url}/-/ready"), "Prometheus is ready")

    def stop(self) -> None:
        self._process.stop()

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{query}", timeout=30) as answer:
            return list(json.loads(answer.read())["data"]["result"])

    def firing(self, alert: str) -> bool:
        return bool(self.ask(f'ALERTS{{alertname="{alert}",alertstate="firing"}}'))
