"""A real process with keys and a port for operations; and what it is told instead of starting."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.main import main
from service.http.auth import key_file

WAIT = 120
"""Seconds that starting may take on a busy machine."""


class Served:
    """A service on two ports of this machine."""

    def __init__(self, repository: Path, folder: Path) -> None:
        keys = folder / "keys.json"
        self.secret = key_file.create_key(keys, "tests", ("rank",))
        self.main, self.operations = free_ports(2)
        ports = ["--port", str(self.main), "--operations-port", str(self.operations)]
        command = [sys.executable, "-m", "pipelines.cli", "serve", str(repository), "--keys", str(keys), *ports]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def status(self, port: int, path: str, body: Any = None, **headers: str) -> int:
        """Of the answer; 0: nobody listens."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
        for name, value in headers.items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


def free_ports(count: int) -> list[int]:
    """Ports of which no two are the same."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@pytest.fixture
def served(repository: Path, tmp_path: Path) -> Iterator[Served]:
    service = Served(repository, tmp_path)
    try:
        deadline = time.monotonic() + WAIT
        while service.status(service.operations, "/v2/health/ready") != 200:
            assert service.process.poll() is None, service.process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield service
    finally:
        service.process.kill()
        service.process.wait()


def test_each_port_has_its_operations_and_only_keys_rank(served: Served) -> None:
    body = {"items": {"id": ["v1"]}}
    assert served.status(served.main, "/v1/rank", body, Authorization=f"Bearer {served.secret}") == 200
    assert served.status(served.main, "/v1/rank", body) == 401
    assert served.status(served.main, "/v2/health/ready") == 200
    assert served.status(served.main, "/metrics", **{"X-API-Key": served.secret}) == 404
    assert served.status(served.operations, "/metrics") == 200
    assert served.status(served.operations, "/v1/rank", body, **{"X-API-Key": served.secret}) == 404
    served.process.terminate()
    _, printed = served.process.communicate(timeout=WAIT)
    assert "tests" in printed  # the key by its name
    assert served.secret not in printed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "there are no API keys: make one with 'ranker keys new"),
        (["--host", "0.0.0.0", "--keys", "nowhere.json"], "nowhere.json: cannot be read"),
        (["--keys", "nowhere.json", "--no-keys"], "keys and no_keys are mutually exclusive"),
        (["--port", "8123", "--operations-port", "8123"], "is the service's own port"),
    ],
)
def test_what_it_is_told_instead_of_starting(
    repository: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert main(["serve", str(repository), *options]) == 1
    assert said in capsys.readouterr().err


def test_a_taken_port_of_operations_is_named(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(repository), "--port", "0", "--operations-port", port]) == 1
    assert f"127.0.0.1:{port} cannot be listened on" in (said := capsys.readouterr().err)
    assert "choose another --operations-port" in said
