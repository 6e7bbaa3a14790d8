"""One process or several behind one port; what cannot be served is told before anything is started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipelines.jobs.demo import post
from ranking.errors import RankerError
from service import main
from service.backends.select import BackendName
from service.settings import Settings
from tests.support.serving import serving

WAIT = 180
"""Seconds that starting or stopping may take on a busy machine."""


def until(happened: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + WAIT
    while not happened():
        assert process.poll() is None, "the service ended"
        assert time.monotonic() < deadline, "the service did not come to that"
        time.sleep(0.05)


def children(process: subprocess.Popen[bytes]) -> set[int]:
    """Processes that serve: those of the supervisor's that are no helper of multiprocessing."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in found}
    return {pid for pid, command in commands.items() if b"spawn_main" in command}


class Several:
    """A service of two processes."""

    def __init__(self, repository: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        serve = [sys.executable, "-m", "pipelines.cli", "serve", str(repository), "--port", str(self.port)]
        self.process = subprocess.Popen([*serve, "--workers", "2", "--threads", "1"], start_new_session=True)

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v2/health/ready", timeout=5) as response:
                return bool(response.status == 200)
        except OSError:
            return False


@pytest.fixture
def several(repository: Path) -> Iterator[Several]:
    service = Several(repository)
    try:
        until(service.ready, service.process)
        yield service
    finally:
        with suppress(ProcessLookupError):
            os.killpg(service.process.pid, signal.SIGKILL)  # its processes too
        service.process.wait()


@pytest.mark.slow
def test_several_processes_share_a_port_and_a_dead_one_is_replaced(
    several: Several, request_body: dict[str, Any]
) -> None:
    process = several.process
    until(lambda: len(children(process)) == 2, process)
    expected = post(f"{several.url}/v1/rank", request_body)
    first = children(process)
    os.kill(min(first), signal.SIGKILL)
    until(lambda: len(children(process)) == 2 and children(process) != first, process)
    for _ in range(20):
        assert post(f"{several.url}/v1/rank", request_body) == expected
    process.terminate()
    assert process.wait(WAIT) in (0, -signal.SIGTERM)
    assert not several.ready()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_no_process_that_serves_by_onnx_runtime_loads_pytorch(
    repository: Path, request_body: dict[str, Any], workers: int
) -> None:
    with serving(repository, workers=workers, threads=1, backend="onnxruntime") as service:
        service.until(lambda: workers == 1 or len(service.workers()) == workers)
        assert post(f"{service.url}/v1/rank", request_body | {"explain": True})["items"]
        for pid in {service.process.pid, *service.workers()}:
            loaded = Path(f"/proc/{pid}/maps").read_text()
            assert "libtorch" not in loaded
            assert "onnxruntime" in loaded


class TestWhatIsToldBeforeTheStart:
    def test_an_address_that_is_taken(self, repository: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(RankerError, match=f"127.0.0.1:{port} cannot be listened on .*choose another --port"):
                main.serve(Settings(repository=repository), "127.0.0.1", port)

    @pytest.mark.parametrize("backend", ["cuda", "auto"])
    def test_a_gpu_that_several_would_share(
        self, repository: Path, monkeypatch: pytest.MonkeyPatch, backend: BackendName
    ) -> None:
        monkeypatch.setattr(main, "has_gpu", lambda: True)
        settings = Settings(repository=repository, backend=backend, workers=2)
        with pytest.raises(RankerError, match="one process owns a GPU; serve with 1"):
            main.serve(settings, "127.0.0.1", 0)


class TestThreads:
    def test_fill_the_cores(self, repository: Path) -> None:
        cores = len(os.sched_getaffinity(0))
        assert Settings(repository=repository).threads == cores
        assert Settings(repository=repository, workers=cores).threads == 1
        assert Settings(repository=repository, workers=10 * cores).threads == 1

    def test_are_as_set(self, repository: Path) -> None:
        assert Settings(repository=repository, workers=2, threads=3).threads == 3
