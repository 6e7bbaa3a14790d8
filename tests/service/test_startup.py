"""Real processes from their first moment: alive at once, ready when warm, gone if there is nothing to serve."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

SECONDS = 120.0

SLOWLY = """
# Serves, but each load takes as long as a file is there.
import sys, time
from pathlib import Path
from service.models import reconciler

load, wait = reconciler.load_model, Path(sys.argv.pop(1))

def slowly(*arguments):
    while wait.exists():
        time.sleep(0.01)
    return load(*arguments)

reconciler.load_model = slowly
from pipelines.cli.main import main
sys.exit(main())
"""


@contextmanager
def started(repository: Path, *options: str, command: tuple[str, ...] = ("-m", "pipelines.cli")) -> Iterator[Any]:
    """A process that serves, and its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve = [sys.executable, *command, "serve", str(repository), "--port", str(port), "--threads", "1", *options]
    process = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ask(url: str, body: Any = None) -> tuple[int, Any, dict[str, str]]:
    """Status, JSON and headers of the answer; 0 if there is none."""
    data = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response), dict(response.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), dict(error.headers)
    except OSError:
        return 0, None, {}


def until_answered(url: str, status: int) -> None:
    give_up = time.monotonic() + SECONDS
    while ask(url)[0] != status:
        assert time.monotonic() < give_up, f"{url} never answered {status}"
        time.sleep(0.02)


def test_a_process_is_alive_at_once_and_ready_once_it_is_warm(
    repository: Path, request_body: dict[str, Any], tmp_path: Path
) -> None:
    wait = tmp_path / "wait"
    wait.touch()
    with started(repository, command=("-c", SLOWLY, str(wait))) as (_, url):
        until_answered(f"{url}/v2/health/live", 200)
        for path, body in (("/v2/health/ready", None), ("/v1/rank", request_body), ("/v2/models/feed", None)):
            status, problem, headers = ask(f"{url}{path}", body)
            assert (status, headers["retry-after"], problem["status"]) == (503, "1", 503)
        assert ask(f"{url}/v2/repository/index", {})[1][0]["state"] == "LOADING"
        wait.unlink()
        until_answered(f"{url}/v2/health/ready", 200)
        assert ask(f"{url}/v1/rank", request_body)[0] == 200


@pytest.mark.parametrize("options", [(), pytest.param(("--workers", "2"), marks=pytest.mark.slow)])
def test_a_service_without_anything_to_serve_ends_and_says_why(
    repository: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    altered = shutil.copytree(repository, tmp_path / "repository")
    (altered / "feed" / "1" / "manifest.json").write_text("{}")
    with started(altered, *options) as (process, _):
        said = process.communicate(timeout=SECONDS)[0].decode()
        assert process.returncode == 1
    assert "feed/1/manifest.json was altered" in said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("ranker: ")
