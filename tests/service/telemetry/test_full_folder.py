"""Services whose metrics folder or stderr cannot be written: requests and metrics are answered as usual."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.bench.server_process import STARTED
from service.telemetry.shared_metrics import INITIAL_BYTES
from tests.support.http_client import send_request
from tests.support.ports import free_port
from tests.support.processes import ServiceProcess, cli_after, running_service, started_service
from tests.support.small_filesystem import small_filesystem
from tests.support.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.system

LIMITED = """
# Serve without writing files above {limit} bytes, as on a full filesystem.
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
"""

STDERR = """
# Serve with another stderr.
import os
os.dup2({descriptor}, 2)
"""


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    with small_filesystem(tmp_path / "small", "64k") as folder:
        yield folder


def exercise(service: ServiceProcess, body: dict[str, Any]) -> None:
    """Send requests with every kind of response; new labels of metrics arise with the responses."""
    pids = service.worker_pids()
    assert len(pids) == 2
    url = f"{service.url}/v1/rank"
    for _ in range(20):
        assert send_request(url, body).status == 200
        assert send_request(url, {"items": 3}).status == 422
        assert send_request(url, body | {"deadline_ms": 0.001}).status == 504
        assert send_request(f"{service.url}/v1/models/none/rank", body).status == 404
        assert service.ready()
        values = service.metrics()
        assert values
        assert any(name.startswith("process_open_fds") for name in values)
    assert service.worker_pids() == pids
    assert service.process.poll() is None


def test_service_that_cannot_write_its_metrics_answers_and_says_so(
    repository: Path, request_body: dict[str, Any]
) -> None:
    python = cli_after(LIMITED.format(limit=INITIAL_BYTES - 1))
    with started_service(repository, python=python, workers=2, threads=1) as service:
        service.wait_until_ready()
        exercise(service, request_body)
        service.wait_until(lambda: service.output().count("metrics cannot be stored in ") >= 2)
        (unshared,) = [n for name, n in service.metrics().items() if name.startswith("ranker_unshared_metrics,pid=")]
        assert unshared > 100


def test_service_on_a_full_filesystem_answers(
    repository: Path, request_body: dict[str, Any], tmpfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmpfs / "filler").write_bytes(b"x" * 64 * 1024)
    monkeypatch.setenv("TMPDIR", str(tmpfs))
    with running_service(repository, workers=2, threads=1) as service:
        exercise(service, request_body)


def test_service_whose_metrics_folder_is_removed_answers_also_after_a_worker_is_replaced(
    repository: Path, request_body: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with running_service(repository, workers=2, threads=1) as service:
        (folder,) = tmp_path.glob("ranker-metrics-*")
        shutil.rmtree(folder)
        exercise(service, request_body)
        killed = min(service.worker_pids())
        os.kill(killed, signal.SIGKILL)
        service.wait_until(lambda: service.output().count(STARTED) == 3)
        exercise(service, request_body)


def test_service_without_a_place_for_its_metrics_folder_names_the_fix(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with started_service(repository, workers=2, threads=1) as service:
        assert service.process.wait(TIMEOUT_SECONDS) == 1
        line = service.output().splitlines()[-1]
    assert line.startswith(f"ranker: {tmp_path / 'nowhere'}: no folder for metrics can be created (No such file")
    assert line.endswith("set TMPDIR to a folder with room, or serve with 1 worker")


@pytest.mark.parametrize("kind", ["full disk", pytest.param("closed pipe", marks=pytest.mark.nightly), "unread pipe"])
def test_service_whose_log_cannot_be_written_answers(repository: Path, request_body: dict[str, Any], kind: str) -> None:
    reader, writer = os.pipe()
    if kind == "closed pipe":
        os.close(reader)
    if kind == "full disk":
        writer = os.open("/dev/full", os.O_WRONLY)
    os.set_inheritable(writer, True)
    python = cli_after(STDERR.format(descriptor=writer))
    port = ["--port", str(free_port())]  # the log, which names it, cannot be read
    with started_service(
        repository, port, python=python, inherited=(writer,), threads=1, slow_ms=1e-6
    ) as service:  # each request is logged
        service.wait_until_ready()
        for _ in range(400 if kind == "unread pipe" else 20):  # more than a pipe holds
            assert send_request(f"{service.url}/v1/rank", request_body).status == 200
