"""Runs a client and a Prometheus server."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from tests.support.http_client import send_request
from tests.support.ports import HOST, free_port
from tests.support.waiting import wait_until


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
        while not self._stopped.wait(0.2):
            send_request(self._url, self._body)


class Prometheus:
    """A Prometheus server with the configuration and rules of the project, but short intervals.

    Args:
        config_folder: folder that contains ``prometheus.yml`` and ``rules.yml``.
        target_port: port to scrape instead of the configured targets.
        folder: folder for the data and log of the server.
    """

    def __init__(self, config_folder: Path, target_port: int, folder: Path) -> None:
        config = yaml.safe_load((config_folder / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
        (scrape,) = config["scrape_configs"]
        del scrape["dns_sd_configs"]
        scrape["static_configs"] = [{"targets": [f"{HOST}:{target_port}"]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        rules = yaml.safe_load((config_folder / "rules.yml").read_text())
        for rule in (rule for group in rules["groups"] for rule in group["rules"] if "for" in rule):
            rule["for"] = "1s"
        (folder / "rules.yml").write_text(yaml.safe_dump(rules))
        address = f"{HOST}:{free_port()}"
        self._url, self._log = f"http://{address}", folder / "prometheus.log"
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, f"--web.listen-address={address}"], stdout=log, stderr=subprocess.STDOUT
            )
        wait_until(self._is_ready, self._log.read_text)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Evaluate a PromQL expression at the current time and return its series."""
        parameters = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._url}/api/v1/query?{parameters}", timeout=30) as response:
            return list(json.loads(response.read())["data"]["result"])

    def firing(self, alert: str) -> bool:
        return bool(self.query(f'ALERTS{{alertname="{alert}",alertstate="firing"}}'))

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        return send_request(f"{self._url}/-/ready").status == 200
