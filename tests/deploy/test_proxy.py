"""Tests of deploy/nginx.conf: nginx accepts it, its limits are those of the service, and it proxies requests."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from service.server.protocol import HEADER_SECONDS, MAX_HEADER_BYTES
from service.settings import Settings
from tests.deploy.rendering import DEPLOY
from tests.support.ports import HOST, free_port
from tests.support.processes import running_service
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

CONFIG = (DEPLOY / "nginx.conf").read_text()
DEFAULTS = {name: field.default for name, field in Settings.model_fields.items()}
BODY = {"user": {"id": "u3"}, "context": {"surface": "home", "hour": 9}, "items": {"id": [f"v{i}" for i in range(40)]}}
MAIN = """
{user}daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
    uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    include {folder}/ranker.conf;
}}
"""
"""A main configuration as in Debian's package, but with all paths in a folder of the test."""


def value_of(directive: str) -> str:
    """The value of a directive that occurs once."""
    (value,) = re.findall(rf"^\s*{directive} ([^;]+);", CONFIG, re.MULTILINE)
    return str(value)


def test_limits_match_the_defaults_of_the_service() -> None:
    assert value_of("client_max_body_size") == f"{DEFAULTS['max_body_bytes'] // 2**20}m"
    assert value_of("client_header_timeout") == f"{HEADER_SECONDS:.0f}s"
    assert value_of("client_body_timeout") == f"{DEFAULTS['read_seconds']:.0f}s"
    count, size = value_of("large_client_header_buffers").split()
    assert int(count) * int(size.removesuffix("k")) * 1024 == MAX_HEADER_BYTES
    upstream, client = re.findall(r"keepalive_timeout (\d+)s;", CONFIG)
    assert int(upstream) < DEFAULTS["keep_alive_seconds"] <= int(client)
    assert int(value_of("proxy_read_timeout").removesuffix("s")) > DEFAULTS["grace_seconds"]


class Proxy:
    """nginx with deploy/nginx.conf, a self-signed certificate and other ports."""

    def __init__(self, folder: Path, upstream: int) -> None:
        self.port = free_port()
        self.certificate = folder / "ranker.crt"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=rank"]
        command += ["-addext", "subjectAltName=DNS:rank.example.com,IP:127.0.0.1"]
        command += ["-keyout", str(folder / "ranker.key"), "-out", str(self.certificate)]
        subprocess.run(command, check=True, capture_output=True)
        config = CONFIG.replace("/etc/nginx/tls", str(folder)).replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
        (folder / "ranker.conf").write_text(config.replace("listen 443", f"listen {HOST}:{self.port}"))
        user = "user root;\n" if os.geteuid() == 0 else ""  # The folders of pytest are accessible to this user only.
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user=user))
        self.command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
        check = subprocess.run([*self.command, "-t"], capture_output=True, text=True, check=False)
        assert check.returncode == 0, check.stderr
        assert "[warn]" not in check.stderr, check.stderr
        self._process = subprocess.Popen(self.command)
        wait_until(lambda: self.request("GET", "/")[0] == 404, "nginx answers")

    def request(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request with TLS. Returns status 0 if nginx does not listen."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        connection = HTTPSConnection(HOST, self.port, context=context, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        except ConnectionRefusedError:
            return 0, {}, b""
        finally:
            connection.close()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def proxy(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    missing = [program for program in ("nginx", "openssl") if shutil.which(program) is None]
    if missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            f"not installed: {', '.join(missing)} (Debian: nginx-light)"
        )
    folder = tmp_path_factory.mktemp("proxy")
    with running_service(repository) as service:
        proxy = Proxy(folder, service.port)
        yield proxy
        proxy.stop()


def test_proxy_ranks_over_tls_and_passes_the_request_id(proxy: Proxy) -> None:
    status, headers, text = proxy.request("POST", "/v1/rank", json.dumps(BODY).encode(), **{"X-Request-ID": "r-7"})
    assert (status, headers["x-request-id"]) == (200, "r-7")
    answer: dict[str, Any] = json.loads(text)
    assert len(answer["items"]) == 40
    assert proxy.request("GET", "/v2/health/ready")[0] == 200
    path = f"/v1/models/{answer['model']}/rank"
    assert proxy.request("POST", path, json.dumps(BODY).encode())[0] == 200


@pytest.mark.parametrize("path", ["/metrics", "/v2/repository/index", "/docs", "/v2/models/feed"])
def test_proxy_does_not_expose_other_operations(proxy: Proxy, path: str) -> None:
    status, headers, _ = proxy.request("GET", path)
    assert status == 404
    assert headers["server"].startswith("nginx")
    assert headers["content-type"] == "text/html", "the service answered"


def test_proxy_passes_bodies_up_to_the_limit_of_the_service(proxy: Proxy) -> None:
    body = json.dumps(BODY).encode()
    assert proxy.request("POST", "/v1/rank", body.ljust(DEFAULTS["max_body_bytes"] - 1))[0] == 200
    assert proxy.request("POST", "/v1/rank", body.ljust(DEFAULTS["max_body_bytes"] + 1))[0] == 413
