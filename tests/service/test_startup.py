"""Start of service processes: alive at once, ready when the models are warm, exit if none can be served."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.main import main
from tests.support.hanging_filesystem import hanging_filesystem
from tests.support.http_client import send_request
from tests.support.processes import cli_after, running_service, started_service
from tests.support.waiting import TIMEOUT_SECONDS

DELAYED_LOADING = """
# Serve, but delay the loading of models while a file exists.
import time
from pathlib import Path
from service.models import reconciler

load_model, delay_file = reconciler.load_model, Path(sys.argv.pop(1))

def load_delayed(*arguments):
    while delay_file.exists():
        time.sleep(0.01)
    return load_model(*arguments)

reconciler.load_model = load_delayed
"""


def test_service_is_alive_at_once_and_ready_when_models_are_loaded(
    repository: Path, request_body: dict[str, Any], tmp_path: Path
) -> None:
    delay_file = tmp_path / "delay"
    delay_file.touch()
    with started_service(repository, python=(*cli_after(DELAYED_LOADING), str(delay_file)), threads=1) as service:
        service.wait_until(lambda: send_request(f"{service.url}/v2/health/live").status == 200)
        for path, body in (("/v2/health/ready", None), ("/v1/rank", request_body), ("/v2/models/feed", None)):
            response = send_request(f"{service.url}{path}", body)
            assert (response.status, response.headers["retry-after"]) == (503, "1")
            field = "error" if path.startswith("/v2/models/") else "detail"
            assert "not ready" in response.json()[field] or "loaded" in response.json()[field]
        assert send_request(f"{service.url}/v2/repository/index", {}).json()[0]["state"] == "LOADING"
        delay_file.unlink()
        service.wait_until_ready()
        assert send_request(f"{service.url}/v1/rank", request_body).status == 200


HANGING_FILES = """
# Serve, but let every read of the repository hang while a file exists.
import os, time
from pathlib import Path
from ranking.artifacts import repository

list_models, hang_file, (wait_end, _) = repository.list_models, Path(sys.argv.pop(1)), os.pipe()

def list_or_hang(path):
    if hang_file.exists():
        os.read(wait_end, 1)
    return list_models(path)

repository.list_models = list_or_hang
from service import main
from service.http import admin
from service.models import watcher
main.CHECK_SECONDS = admin.REPOSITORY_SECONDS = watcher.STOP_SECONDS = 0.5
"""


@pytest.mark.nightly(short="test_service_is_alive_at_once_and_ready_when_models_are_loaded")
def test_service_with_a_damaged_version_is_alive_and_becomes_ready_when_it_is_repaired(
    repository: Path, tmp_path: Path
) -> None:
    workers = 2
    damaged = shutil.copytree(repository, tmp_path / "repository")
    manifest = damaged / "feed" / "1" / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_text("{}")
    with started_service(damaged, workers=workers, threads=1, poll_seconds=0.1) as service:
        service.wait_until(lambda: service.output().count("not ready until a model can be loaded: ") == workers)
        service.wait_until(lambda: send_request(f"{service.url}/v2/health/live").status == 200)
        for path, body in (("/v2/health/ready", None), ("/v1/rank", {"items": []})):
            assert send_request(f"{service.url}{path}", body).status == 503
        manifest.write_bytes(content)
        service.wait_until(lambda: all(service.ready() for _ in range(20)))
        assert send_request(f"{service.url}/v1/rank", {"items": []}).status == 200
        output = service.output()
    assert output.count("feed/1/manifest.json was altered") == 2 * workers
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("folder", "options", "message"),
    [
        ("", ["--model", "shop"], "has no model 'shop': it has feed"),
        ("", ["--backend", "cuda"], "the cuda backend needs an NVIDIA GPU"),
        ("nothing", [], "no such repository"),
    ],
)
def test_service_with_a_setting_that_cannot_work_exits_with_the_reason(
    repository: Path, folder: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(repository / folder), "--port", "0", *options]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ranker: ")
    assert message in line


def test_service_with_an_unknown_variable_exits_with_a_suggestion(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANKER_MAX_CANDIDATE", "10")
    assert main(["serve", str(repository)]) == 1
    expected = "RANKER_MAX_CANDIDATE: unknown setting; did you mean RANKER_MAX_CANDIDATES?"
    assert capsys.readouterr().err == f"ranker: the environment: {expected}\n"


@pytest.mark.system
def test_service_whose_repository_hangs_is_alive_and_stops(repository: Path, tmp_path: Path) -> None:
    hang_file = tmp_path / "hang"
    hang_file.touch()
    with started_service(
        repository, python=(*cli_after(HANGING_FILES), str(hang_file)), threads=1, poll_seconds=0.1
    ) as service:
        service.wait_until(lambda: send_request(f"{service.url}/v2/health/live").status == 200)
        assert send_request(f"{service.url}/v2/health/ready").status == 503
        admin = f"{service.url}/v2/repository"
        for path, body, method in (
            ("/index", {}, "POST"),
            ("/models/feed/load", {}, "POST"),
            ("/models/feed/release", None, "GET"),
            ("/models/feed/release", {"version": 1}, "PUT"),
        ):
            response = send_request(f"{admin}{path}", body, method=method)
            assert (response.status, "does not respond" in response.json()["detail"]) == (504, True), path
        service.process.terminate()
        assert service.process.wait(TIMEOUT_SECONDS) == 0
        output = service.output()
    assert f"{repository} does not respond" in output
    assert "Traceback" not in output


@pytest.mark.system
def test_service_whose_repository_hangs_later_continues_to_rank_and_stops(
    repository: Path, request_body: dict[str, Any], tmp_path: Path
) -> None:
    hang_file = tmp_path / "hang"
    with started_service(
        repository, python=(*cli_after(HANGING_FILES), str(hang_file)), threads=1, poll_seconds=0.1
    ) as service:
        service.wait_until_ready()
        hang_file.touch()
        assert send_request(f"{service.url}/v2/repository/models/feed/load", {}).status == 504
        for _ in range(8):  # each leaves a thread behind, up to a limit
            send_request(f"{service.url}/v2/repository/models/feed/load", {})
        assert send_request(f"{service.url}/v2/repository/models/feed/load", {}).status == 503
        assert send_request(f"{service.url}/v1/rank", request_body).status == 200
        assert send_request(f"{service.url}/v2/health/ready").status == 200
        service.process.terminate()
        assert service.process.wait(TIMEOUT_SECONDS) == 0


SHORT_OPERATIONS = """
import sys
if "serve" in sys.orig_argv or "spawn_main" in " ".join(sys.orig_argv):
    from service import main
    from service.http import admin
    from service.models import watcher
    main.CHECK_SECONDS = admin.REPOSITORY_SECONDS = watcher.STOP_SECONDS = 1.0
"""


@pytest.fixture
def _short_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operations on the repository of services and their workers time out sooner."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SHORT_OPERATIONS)
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


@pytest.mark.system
@pytest.mark.usefixtures("_short_operations")
def test_service_on_a_filesystem_that_hangs_continues_to_rank_until_it_responds(
    repository: Path, request_body: dict[str, Any], tmp_path: Path
) -> None:
    """Protects ranking against a repository that hangs; waits for three operations that time out."""
    path = shutil.copytree(repository, tmp_path / "repository")
    with running_service(path, workers=2, threads=1, poll_seconds=0.1) as service:

        def last_read() -> float:
            return service.metrics()["ranker_repository_read_timestamp_seconds"]

        load = f"{service.url}/v2/repository/models/feed/load"
        with hanging_filesystem(path / "feed"):
            assert send_request(load, {}).status == 504
            hung = last_read()
            assert send_request(f"{service.url}/v1/rank", request_body).status == 200
            assert send_request(load, {}).status == 504
            assert send_request(f"{service.url}/v1/rank", request_body).status == 200
            assert last_read() == hung
        service.wait_until(lambda: last_read() > hung)
        with hanging_filesystem(path / "feed"):
            assert send_request(load, {}).status == 504
            service.process.terminate()
            assert service.process.wait(TIMEOUT_SECONDS) == 0
        assert "Traceback" not in service.output()


@pytest.mark.system
@pytest.mark.usefixtures("_short_operations")
def test_service_that_starts_on_a_filesystem_that_hangs_becomes_ready_when_it_responds(
    repository: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(repository, tmp_path / "repository")
    with ExitStack() as stack:
        filesystem = stack.enter_context(ExitStack())
        filesystem.enter_context(hanging_filesystem(path))
        service = stack.enter_context(started_service(path, threads=1, poll_seconds=0.1))
        service.wait_until(lambda: send_request(f"{service.url}/v2/health/live").status == 200)
        assert send_request(f"{service.url}/v2/health/ready").status == 503
        filesystem.close()
        service.wait_until_ready()
