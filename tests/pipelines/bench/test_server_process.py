"""Tests of server processes: start, readiness and stop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.bench.load import LoadSpec
from pipelines.bench.requests import Requests
from pipelines.bench.server_process import ServerProcess, service_process
from pipelines.jobs.publish import publish
from ranking.errors import RankerError
from ranking.frozen.ranker import FrozenRanker
from service.settings import Settings
from tests.support.waiting import wait_until

SERVER_WITH_CHILD = """
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=bool(sys.argv[2:]))
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"{child.pid} {sorted(os.sched_getaffinity(0))}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Ready)
print(f"serving on http://127.0.0.1:{server.server_port}, started", flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize("options", [[], ["child with a session of its own"]])
def test_server_process_pins_cores_and_stops_all_processes(options: list[str]) -> None:
    import urllib.request

    core = min(os.sched_getaffinity(0))
    with ServerProcess([sys.executable, "-c", SERVER_WITH_CHILD, "{port}", *options], "/", [core]) as server:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/") as response:
            child, cores = response.read().decode().split(" ", 1)
        assert cores == f"[{core}]"
        assert Path(f"/proc/{child}").exists()
        assert server.cpu_seconds() > 0
        assert {server.pid, int(child)} == set(server.pids())
    wait_until(lambda: not is_running(child), "the child process ends")


@pytest.mark.system
def test_server_processes_of_a_benchmark_end_with_its_sigterm(reference: Path) -> None:
    """Protects the machine of a user: a server that outlives the benchmark keeps a core and its memory."""
    command = [sys.executable, "-m", "pipelines.cli", "bench", str(reference)]

    def servers(parent: int) -> list[str]:
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [pid for pid in children if b"server_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: servers(process.pid), "the benchmark has started a server")
        (server,) = servers(process.pid)
        process.terminate()
        assert process.communicate()[1].endswith("ranker: interrupted\n")
    assert process.returncode == 1
    wait_until(lambda: not is_running(server), "the server ends")


def test_server_process_reserves_its_port_before_the_server_starts() -> None:
    bind_like_another_program = """
import socket, sys
try:
    socket.socket().bind(("127.0.0.1", int(sys.argv[1])))
except OSError:
    pass
else:
    sys.exit("the port is not reserved")
"""
    command = [sys.executable, "-c", bind_like_another_program + SERVER_WITH_CHILD, "{port}"]
    with ServerProcess(command, "/", [min(os.sched_getaffinity(0))]) as server:
        assert server.port > 0


def test_server_process_that_chooses_its_port_is_found_by_its_output() -> None:
    with ServerProcess([sys.executable, "-c", SERVER_WITH_CHILD, "0"], "/", [min(os.sched_getaffinity(0))]) as server:
        assert server.port > 0


def is_running(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_server_process_that_does_not_start_raises_with_its_output() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no model here')"]
    with pytest.raises(RankerError, match="no model here"), ServerProcess(command, "/", [0]):
        pass


@pytest.mark.nightly(short="tests/pipelines/bench/test_command.py::test_bench_measures_a_users_bundle")
def test_service_process_reports_its_stages(ranker: FrozenRanker, reference: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    publish(reference, repository)
    cores = sorted(os.sched_getaffinity(0))[:1]
    with service_process(Settings(repository=repository, threads=1), cores) as server:
        bodies = Requests(ranker, reference).bodies("ids", 10)
        spec = LoadSpec(server.port, bodies, seconds=0.05, warmup_seconds=0.0, clients=1)
        command = [sys.executable, "-m", "pipelines.bench.load"]
        process = subprocess.run(command, input=spec.to_json(), capture_output=True, text=True, check=True)
    for stage in ("parse", "look-up", "queue", "forward", "write"):
        assert f'"{stage}": ' in process.stdout
    assert '"failed": {}' in process.stdout
