"""The supervisor of worker processes: hung workers, crash loops, and workers that cannot start."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_client import NO_RESPONSE, post_json, read_until_closed, send_request
from tests.support.metrics import samples
from tests.support.ports import HOST
from tests.support.processes import ServiceProcess, running_service, started_service
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

pytestmark = pytest.mark.slow

CRASHING_WORKER = """
import os, sys
if "spawn_main" in " ".join(sys.orig_argv) and os.path.exists({marker!r}):
    os._exit(9)
"""


@pytest.fixture
def crash_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file; while it exists, each new worker process exits with code 9 before it imports anything."""
    marker = tmp_path / "crash"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(CRASHING_WORKER.format(marker=str(marker)))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    return marker


@contextmanager
def clients(service: ServiceProcess, body: dict[str, Any], count: int = 4) -> Iterator[list[tuple[int, float]]]:
    """Clients that send requests on new connections; yield the (status, seconds) of each request so far."""
    results: list[tuple[int, float]] = []
    stopped = threading.Event()

    def send() -> None:
        while not stopped.is_set():
            begin = time.monotonic()
            status = send_request(f"{service.url}/v1/rank", body).status
            results.append((status, time.monotonic() - begin))
            stopped.wait(0.02)

    threads = [threading.Thread(target=send) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield results
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def rejects_connections(port: int) -> bool:
    """Whether a port rejects connections at once; a connection that waits in a queue fails the test."""
    try:
        with socket.create_connection((HOST, port), timeout=TIMEOUT_SECONDS):
            return False
    except ConnectionRefusedError:
        return True


def both_workers(service: ServiceProcess) -> set[int]:
    service.wait_until(lambda: len(service.worker_pids()) == 2)
    return service.worker_pids()


def logged(service: ServiceProcess, text: str) -> bool:
    return text in service.output()


def restarts(service: ServiceProcess, reason: str) -> float:
    return samples(service.metrics()).get(f"ranker_worker_restarts_total,reason={reason}", -1)


def test_hung_worker_is_replaced_and_its_clients_are_disconnected(
    repository: Path, request_body: dict[str, Any]
) -> None:
    with running_service(repository, workers=2, threads=1, worker_timeout_seconds=5) as service:
        pids = both_workers(service)
        hung, healthy = sorted(pids)
        assert (restarts(service, "hung"), restarts(service, "died")) == (0, 0)
        with clients(service, request_body) as results:
            wait_until(lambda: len(results) > 50, service.output)
            os.kill(healthy, signal.SIGSTOP)
            idle = service.connect()  # accepted by the only worker that runs
            assert service.get("/v2/health/live")
            os.kill(hung, signal.SIGSTOP)
            os.kill(healthy, signal.SIGCONT)
            assert read_until_closed(idle) == b""
            service.wait_until(lambda: hung not in service.worker_pids() and len(service.worker_pids()) == 2)
            service.wait_until(lambda: service.output().count("serving feed version 1") == 3)
            count = len(results)
            wait_until(lambda: len(results) > count + 50, service.output)
        statuses = [status for status, _ in results]
        assert set(statuses) <= {200, NO_RESPONSE}
        assert statuses.count(NO_RESPONSE) <= 4  # at most the requests that the hung worker had accepted
        assert statuses[-20:] == [200] * 20
        assert (restarts(service, "hung"), restarts(service, "died")) == (1, 0)
        assert healthy in service.worker_pids()
        output = service.output()
    assert f"process {hung} has not responded for " in output
    assert f"process {hung} died (exit code -9) and is replaced" in output


def test_worker_that_loads_slowly_is_not_replaced(repository: Path, tmp_path: Path, crash_marker: Path) -> None:
    slow = "import os, sys, time\\nif 'spawn_main' in ' '.join(sys.orig_argv):\\n    time.sleep(8)\\n"
    (tmp_path / "site" / "sitecustomize.py").write_text(slow.replace("\\n", "\n"))
    with running_service(repository, workers=2, threads=1, worker_timeout_seconds=4) as service:
        assert "has not responded" not in service.output()
        assert (restarts(service, "hung"), restarts(service, "died")) == (0, 0)


def test_killed_workers_are_replaced_with_growing_delays_and_the_port_rejects_connections_meanwhile(
    repository: Path, request_body: dict[str, Any]
) -> None:
    with running_service(repository, workers=2, threads=1) as service:
        for delay in (1, 2, 4):
            for pid in both_workers(service):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: rejects_connections(service.port), service.output)
            assert send_request(f"{service.url}/v2/health/ready").status == NO_RESPONSE
            wait_until(partial(logged, service, f"is replaced in {delay} s"), service.output)
            service.wait_until_ready()
            assert post_json(f"{service.url}/v1/rank", request_body)["items"]
        service.wait_until(lambda: restarts(service, "died") == 6)
        assert service.output().count("no process accepts connections") == 3
        service.process.terminate()
        assert service.process.wait(TIMEOUT_SECONDS) == 0


def test_service_whose_workers_cannot_start_gives_up_with_the_reason(repository: Path, crash_marker: Path) -> None:
    crash_marker.touch()
    with started_service(repository, workers=2, threads=1) as service:
        service.wait_until(lambda: "is replaced in 2 s" in service.output())
        assert rejects_connections(service.port)
        assert service.process.wait(TIMEOUT_SECONDS) == 1
        output = service.output()
    assert output.count("died (exit code 9) and is replaced in ") == 9
    assert output.splitlines()[-1] == (
        "ranker: no worker process can serve: the last 10 starts failed, the last with exit code 9"
    )
    assert "Traceback" not in output


def test_service_does_not_give_up_while_one_worker_serves(
    repository: Path, request_body: dict[str, Any], crash_marker: Path
) -> None:
    with running_service(repository, workers=2, threads=1) as service:
        pids = both_workers(service)
        crash_marker.touch()
        killed = min(pids)
        os.kill(killed, signal.SIGKILL)
        service.wait_until(lambda: "is replaced in 4 s" in service.output())
        assert service.ready()
        assert post_json(f"{service.url}/v1/rank", request_body)["items"]
        crash_marker.unlink()
        assert killed not in both_workers(service)
        service.wait_until(lambda: service.output().count("serving feed version 1") == 3)
        assert service.ready()


def test_worker_that_dies_at_the_start_does_not_delay_the_others(
    repository: Path, tmp_path: Path, crash_marker: Path
) -> None:
    once = f"""
import os, sys
if "spawn_main" in " ".join(sys.orig_argv):
    try:
        os.remove({str(crash_marker)!r})
    except FileNotFoundError:
        pass
    else:
        os._exit(9)
"""
    (tmp_path / "site" / "sitecustomize.py").write_text(once)
    crash_marker.touch()
    with running_service(repository, workers=2, threads=1) as service:
        assert logged(service, "died (exit code 9) and is replaced in 1 s")
        service.wait_until(lambda: service.output().count("serving feed version 1") == 2)
        assert restarts(service, "died") == 1


def test_service_whose_workers_die_beside_a_damaged_repository_is_live_until_it_is_repaired(
    repository: Path, request_body: dict[str, Any], tmp_path: Path
) -> None:
    path = shutil.copytree(repository, tmp_path / "repository")
    manifest = path / "feed" / "1" / "manifest.json"
    content = manifest.read_bytes()
    with running_service(path, workers=2, threads=1, poll_seconds=0.1) as service:
        pids = both_workers(service)
        manifest.write_text("{}")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        service.wait_until(lambda: service.output().count("not ready until a model can be loaded: ") == 2)
        assert send_request(f"{service.url}/v2/health/live").status == 200
        assert send_request(f"{service.url}/v2/health/ready").status == 503
        assert not pids & both_workers(service)
        manifest.write_bytes(content)
        service.wait_until_ready()
        assert post_json(f"{service.url}/v1/rank", request_body)["items"]


def test_supervisor_with_hung_workers_stops_within_its_periods(repository: Path) -> None:
    settings = {"workers": 2, "threads": 1, "worker_timeout_seconds": 600, "grace_seconds": 1}
    with running_service(repository, **settings) as service:
        for pid in both_workers(service):
            os.kill(pid, signal.SIGSTOP)
        service.process.terminate()
        assert service.process.wait(TIMEOUT_SECONDS) == 0
        with suppress(FileNotFoundError):
            assert not service.worker_pids()
