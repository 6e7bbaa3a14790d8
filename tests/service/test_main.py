"""``service.main``: one or several processes behind one port, and checks before any process starts."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pipelines.jobs.release import change_release
from ranking.artifacts.remote_repository import RemoteRepository
from ranking.errors import ConfigError, RankerError
from service import main
from service.main import choose_operations_port, is_loopback, require_keys
from service.settings import Settings
from tests.support.http_client import post_json
from tests.support.ports import occupied_port
from tests.support.processes import running_service
from tests.support.waiting import TIMEOUT_SECONDS

SETTINGS = Settings(repository=Path("repository"))
REACHABLE = ["0.0.0.0", "::", "", "10.0.0.1", "::ffff:10.0.0.1", "ranker.example", "localhost.example"]
LOOPBACK = ["127.0.0.1", "127.8.0.1", "::1", "localhost"]


@pytest.mark.system
def test_workers_share_a_port_and_a_killed_worker_is_replaced(repository: Path, request_body: dict[str, Any]) -> None:
    """The death of a process must not end the service."""
    with running_service(repository, workers=2, threads=1) as service:
        expected = post_json(f"{service.url}/v1/rank", request_body)
        first = service.worker_pids()
        os.kill(min(first), signal.SIGKILL)
        service.wait_until(lambda: len(service.worker_pids()) == 2 and service.worker_pids() != first)
        for _ in range(20):
            assert post_json(f"{service.url}/v1/rank", request_body) == expected
        service.process.terminate()
        assert service.process.wait(TIMEOUT_SECONDS) in (0, -signal.SIGTERM)
        assert not service.ready()


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_service_with_onnxruntime_backend_does_not_load_pytorch_and_logs_each_address_once(
    repository: Path, request_body: dict[str, Any], workers: int
) -> None:
    options = ["--operations-port", "0", "--backend", "onnxruntime"]
    with running_service(repository, options, workers=workers, threads=1) as service:
        assert post_json(f"{service.url}/v1/rank", request_body | {"explain": True})["items"]
        for pid in {service.process.pid, *service.worker_pids()}:
            libraries = Path(f"/proc/{pid}/maps").read_text()
            assert "libtorch" not in libraries
            assert "onnxruntime" in libraries
        output = service.output()
    assert output.count(f"serving on {service.url}, documentation at /docs") == 1
    assert output.count(f"serving metrics and admin operations on http://127.0.0.1:{service.operations_port},") == 1


@pytest.mark.nightly(
    short="tests/service/models/test_object_storage.py::test_service_serves_releases_from_object_storage"
)
def test_workers_share_a_copy_of_a_repository_in_object_storage(
    repo: Path, location: str, request_body: dict[str, Any], tmp_path: Path
) -> None:
    RemoteRepository(location, print).push(repo)
    with running_service(tmp_path / "copy", workers=2, threads=1, remote=location, poll_seconds=0.2) as service:
        assert post_json(f"{service.url}/v1/rank", request_body)["version"] == "1"
        change_release(repo, "feed", {"version": 2})
        RemoteRepository(location, print).push(repo)
        service.wait_until(lambda: post_json(f"{service.url}/v1/rank", request_body)["version"] == "2")
        assert service.output().count(f"copied version 1 of feed from {location}") == 1


def test_serve_on_an_occupied_port_raises(repository: Path) -> None:
    message = "127.0.0.1:{} cannot be listened on .*choose another --port"
    with occupied_port() as port, pytest.raises(RankerError, match=message.format(port)):
        main.serve(Settings(repository=repository), "127.0.0.1", port)


def test_serve_with_an_unsupported_uvicorn_raises(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(HttpToolsProtocol, "_start_asgi_task")
    monkeypatch.setattr("uvicorn.__version__", "0.44.0")
    with pytest.raises(RankerError, match=r"uvicorn 0\.44\.0 is not supported.*>=0\.51,<0\.55") as caught:
        main.serve(Settings(repository=repository), "127.0.0.1", 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("allowed", "fix"),
    [
        (64, "even with max_connections = 1 it must be at least 1001"),
        (1_000, "even with max_connections = 1 it must be at least 1001"),
        (1_001, "or lower max_connections to at most 1"),
        (2_048, "or lower max_connections to at most 1048"),
    ],
)
def test_serve_with_too_few_open_files_names_the_limit_that_is_needed(
    monkeypatch: pytest.MonkeyPatch, allowed: int, fix: str
) -> None:
    monkeypatch.setattr(main.resource, "getrlimit", lambda _: (allowed, allowed))
    with pytest.raises(RankerError) as caught:
        main.serve(SETTINGS, "127.0.0.1", 0)
    assert "'ulimit -n 4000'" in str(caught.value)
    assert str(caught.value).endswith(fix)
    assert f"may have {allowed}:" in str(caught.value)


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_host_needs_neither_keys_nor_an_operations_port(host: str) -> None:
    assert is_loopback(host)
    require_keys(SETTINGS, host)
    assert choose_operations_port(SETTINGS, host, 8000) is None
    assert choose_operations_port(SETTINGS.model_copy(update={"operations_port": 9000}), host, 8000) == 9000


@pytest.mark.parametrize("host", REACHABLE)
def test_reachable_host_needs_keys_or_no_keys(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match=r"ranker keys new .* --keys FILE, or pass --no-keys"):
        require_keys(SETTINGS, host)
    require_keys(SETTINGS.model_copy(update={"no_keys": True}), host)
    require_keys(SETTINGS.model_copy(update={"keys": Path("keys.json")}), host)


@pytest.mark.parametrize("host", REACHABLE)
def test_reachable_host_has_a_separate_operations_port(host: str) -> None:
    assert choose_operations_port(SETTINGS, host, 8000) == 8001
    assert choose_operations_port(SETTINGS.model_copy(update={"operations_port": 9000}), host, 8000) == 9000


def test_choose_operations_port_equal_to_the_service_port_raises() -> None:
    with pytest.raises(ConfigError, match="operations_port = 8001 is the service's own port: choose another"):
        choose_operations_port(SETTINGS, "0.0.0.0", 8001)
    assert choose_operations_port(SETTINGS.model_copy(update={"operations_port": 0}), "127.0.0.1", 0) == 0
