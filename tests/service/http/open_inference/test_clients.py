"""The clients of Triton and KServe score as ``/v1/rank``, also with the program of docs/open-inference.md.

The environment of the clients takes longer to install than all other tests of the protocol take together.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Once
from tests.service.http.open_inference.tensor_requests import expected, rank_body
from tests.support.http_client import send_request
from tests.support.processes import ServiceProcess, running_service

ROOT = Path(__file__).parents[4]
LOCK = ROOT / "requirements" / "isolated" / "open-inference.lock"
PROGRAM = Path(__file__).with_name("call_clients.py")

pytestmark = pytest.mark.nightly(
    short="tests/service/http/open_inference/test_routes.py::test_infer_with_binary_data_equals_json"
)


@pytest.fixture(scope="module")
def python(once: Once) -> Path:
    """Python of an environment with the clients."""

    def install(folder: Path) -> None:
        options = ["--quiet", "--no-compile", "--no-deps", "--require-hashes", "--requirement", LOCK]
        install_locked = ["pip", "--python", folder / "bin" / "python", "install", *options]
        for arguments in (["venv", "--without-pip", folder], install_locked):
            command = [sys.executable, "-m", *map(str, arguments)]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode and not os.environ.get("CI"):
                pytest.skip(f"the clients cannot be installed: {result.stderr[-300:]}")
            assert not result.returncode, result.stderr

    return once("open inference clients", install) / "bin" / "python"


@pytest.fixture(scope="module")
def service(repository: Path) -> Iterator[ServiceProcess]:
    with running_service(repository) as service:
        yield service


def run(*command: object) -> str:
    result = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=120)
    assert not result.returncode, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def results(python: Path, service: ServiceProcess) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(run(python, PROGRAM, service.url).splitlines()[-1])
    return results


def test_clients_read_health_and_metadata(results: dict[str, Any]) -> None:
    triton, kserve = results["triton"], results["kserve"]
    assert triton["ready"] == [True] * 5
    assert triton["server"]["extensions"] == ["binary_tensor_data"]
    assert triton["outputs"][-1] == "score"
    assert (kserve["ready"], kserve["model"]) == ([True, True], True)


@pytest.mark.parametrize(
    ("client", "form"),
    [("triton", "binary"), ("triton", "json"), ("triton", "default"), ("kserve", "binary"), ("kserve", "json")],
)
def test_client_scores_equal_those_of_rank(
    results: dict[str, Any], service: ServiceProcess, client: str, form: str
) -> None:
    ranked = send_request(f"{service.url}/v1/rank", rank_body()).json()
    scores = results[client][form]
    assert set(scores) == {*ranked["items"][0]["scores"], "score"}
    for name, values in scores.items():
        np.testing.assert_allclose(values, expected(ranked, name), rtol=0, atol=1e-5)


def test_triton_client_raises_the_error_of_the_service(results: dict[str, Any]) -> None:
    assert results["triton"]["error"] == ["422", "inputs.item_id: is missing: send the ids of the candidates"]


def test_docs_program_runs(python: Path, service: ServiceProcess) -> None:
    text = (ROOT / "docs" / "open-inference.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(run(python, "-c", program.replace("127.0.0.1:8000", service.url.removeprefix("http://"))).split()) >= 2
