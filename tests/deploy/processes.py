"""Runs the service, a client and a Prometheus server as processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.support.http_client import send_request
from tests.support.ports import free_port, free_ports
from tests.support.waiting import wait_until


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
        return send_request(url, timeout=10).status == 200

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
        self.port, self.operations_port = free_ports(2)
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
        self._url, self._body = url, body
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send_requests)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _send_requests(self) -> None:
        while not self._stopped.wait(0.02):
            send_request(self._url, self._body, timeout=10)


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
