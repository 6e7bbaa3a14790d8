"""Start of service processes: alive at once, ready when the models are warm, exit if none can be served."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_client import send_request
from tests.support.processes import started_service
from tests.support.waiting import TIMEOUT_SECONDS

DELAYED_LOADING = """
# Serve, but delay the loading of models while a file exists.
import sys, time
from pathlib import Path
from service.models import reconciler

load_model, delay_file = reconciler.load_model, Path(sys.argv.pop(1))

def load_delayed(*arguments):
    while delay_file.exists():
        time.sleep(0.01)
    return load_model(*arguments)

reconciler.load_model = load_delayed
from pipelines.cli.main import main
sys.exit(main())
"""


def test_service_is_alive_at_once_and_ready_when_models_are_loaded(
    repository: Path, request_body: dict[str, Any], tmp_path: Path
) -> None:
    delay_file = tmp_path / "delay"
    delay_file.touch()
    with started_service(repository, python=("-c", DELAYED_LOADING, str(delay_file)), threads=1) as service:
        service.wait_until(lambda: send_request(f"{service.url}/v2/health/live").status == 200)
        for path, body in (("/v2/health/ready", None), ("/v1/rank", request_body), ("/v2/models/feed", None)):
            response = send_request(f"{service.url}{path}", body)
            assert (response.status, response.headers["retry-after"], response.json()["status"]) == (503, "1", 503)
        assert send_request(f"{service.url}/v2/repository/index", {}).json()[0]["state"] == "LOADING"
        delay_file.unlink()
        service.wait_until_ready()
        assert send_request(f"{service.url}/v1/rank", request_body).status == 200


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_service_without_a_servable_model_exits_with_the_reason(repository: Path, tmp_path: Path, workers: int) -> None:
    damaged = shutil.copytree(repository, tmp_path / "repository")
    (damaged / "feed" / "1" / "manifest.json").write_text("{}")
    with started_service(damaged, workers=workers, threads=1) as service:
        assert service.process.wait(TIMEOUT_SECONDS) == 1
        output = service.output()
    assert "feed/1/manifest.json was altered" in output
    assert "Traceback" not in output
    assert output.splitlines()[-1].startswith("ranker: ")
