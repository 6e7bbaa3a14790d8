"""Servers are started, waited for and stopped with all their processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.bench.load import Load
from pipelines.bench.requests import Requests
from pipelines.bench.serving import Server, ours
from pipelines.jobs.publish import publish
from ranking.errors import RankerError
from ranking.frozen.ranker import FrozenRanker
from service.settings import Settings

WITH_A_CHILD = """
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{child.pid} {sorted(os.sched_getaffinity(0))}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready).serve_forever()
"""


def test_all_processes_end_with_the_block_and_use_the_cores_given() -> None:
    import urllib.request

    core = min(os.sched_getaffinity(0))
    with Server([sys.executable, "-c", WITH_A_CHILD, "{port}"], "/", [core]) as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/") as answer:
            child, cores = answer.read().decode().split(" ", 1)
        assert cores == f"[{core}]"
        assert Path(f"/proc/{child}").exists()
        assert server.cpu_seconds() > 0
        assert server.resident_bytes() > 2 * 2**20
    deadline = time.monotonic() + 10.0
    while _runs(child) and time.monotonic() < deadline:  # a kill takes a moment
        time.sleep(0.01)
    assert not _runs(child)


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_who_does_not_start_is_quoted() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no model here')"]
    with pytest.raises(RankerError, match="no model here"), Server(command, "/", [0]):
        pass


def test_the_service_tells_its_stages(ranker: FrozenRanker, reference: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    publish(reference, repository)
    cores = sorted(os.sched_getaffinity(0))[:1]
    with ours(Settings(repository=repository, server_timing=True, threads=1), cores) as server:
        bodies = Requests(ranker, reference).bodies("ids", 10)
        load = Load(server.port, bodies, seconds=0.05, warm=0.0, clients=1)
        command = [sys.executable, "-m", "pipelines.bench.load"]
        done = subprocess.run(command, input=load.to_json(), capture_output=True, text=True, check=True)
    for stage in ("parse", "look-up", "queue", "forward", "write"):
        assert f'"{stage}": ' in done.stdout
    assert '"failed": {}' in done.stdout
