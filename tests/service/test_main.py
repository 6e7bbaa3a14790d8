"""``service.main``: one or several processes behind one port, and checks before any process starts."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ranking.errors import RankerError
from service import main
from service.backends.select import BackendName
from service.settings import Settings
from tests.support.http_client import post_json
from tests.support.ports import occupied_port
from tests.support.processes import running_service
from tests.support.waiting import TIMEOUT_SECONDS


@pytest.mark.slow
def test_workers_share_a_port_and_a_killed_worker_is_replaced(repository: Path, request_body: dict[str, Any]) -> None:
    with running_service(repository, workers=2, threads=1) as service:
        service.wait_until(lambda: len(service.worker_pids()) == 2)
        expected = post_json(f"{service.url}/v1/rank", request_body)
        first = service.worker_pids()
        os.kill(min(first), signal.SIGKILL)
        service.wait_until(lambda: len(service.worker_pids()) == 2 and service.worker_pids() != first)
        for _ in range(20):
            assert post_json(f"{service.url}/v1/rank", request_body) == expected
        service.process.terminate()
        assert service.process.wait(TIMEOUT_SECONDS) in (0, -signal.SIGTERM)
        assert not service.ready()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_process_with_onnxruntime_backend_does_not_load_pytorch(
    repository: Path, request_body: dict[str, Any], workers: int
) -> None:
    with running_service(repository, workers=workers, threads=1, backend="onnxruntime") as service:
        service.wait_until(lambda: workers == 1 or len(service.worker_pids()) == workers)
        assert post_json(f"{service.url}/v1/rank", request_body | {"explain": True})["items"]
        for pid in {service.process.pid, *service.worker_pids()}:
            libraries = Path(f"/proc/{pid}/maps").read_text()
            assert "libtorch" not in libraries
            assert "onnxruntime" in libraries


def test_serve_on_an_occupied_port_raises(repository: Path) -> None:
    message = "127.0.0.1:{} cannot be listened on .*choose another --port"
    with occupied_port() as port, pytest.raises(RankerError, match=message.format(port)):
        main.serve(Settings(repository=repository), "127.0.0.1", port)


@pytest.mark.parametrize("backend", ["cuda", "auto"])
def test_serve_with_several_workers_and_a_gpu_raises(
    repository: Path, monkeypatch: pytest.MonkeyPatch, backend: BackendName
) -> None:
    monkeypatch.setattr(main, "has_gpu", lambda: True)
    settings = Settings(repository=repository, backend=backend, workers=2)
    with pytest.raises(RankerError, match="one process owns a GPU; serve with 1"):
        main.serve(settings, "127.0.0.1", 0)


def test_serve_with_an_unsupported_uvicorn_raises(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(HttpToolsProtocol, "_start_asgi_task")
    with pytest.raises(RankerError, match=r"uvicorn .* is not supported"):
        main.serve(Settings(repository=repository), "127.0.0.1", 0)


def test_threads_default_to_the_cores_divided_by_the_workers(repository: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    assert Settings(repository=repository).threads == cores
    assert Settings(repository=repository, workers=cores).threads == 1
    assert Settings(repository=repository, workers=10 * cores).threads == 1


def test_threads_setting_overrides_the_default(repository: Path) -> None:
    assert Settings(repository=repository, workers=2, threads=3).threads == 3
