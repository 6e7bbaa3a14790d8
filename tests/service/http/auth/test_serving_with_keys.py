"""A service process with API keys and an operations port, and the errors that prevent its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.cli.main import main
from service.http.auth.keys import create_key
from tests.support.http_client import send_request
from tests.support.ports import HOST, occupied_port
from tests.support.processes import started_service
from tests.support.waiting import TIMEOUT_SECONDS


def test_service_with_keys_separates_operations_and_requires_a_key_to_rank(repository: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    secret = create_key(keys, "tests", ("rank",))
    options = ["--keys", str(keys), "--operations-port", "0"]
    with started_service(repository, options) as service:
        operations = f"http://{HOST}:{service.operations_port}"
        service.wait_until(lambda: send_request(f"{operations}/v2/health/ready").status == 200)
        body, header = {"items": {"id": ["v1"]}}, {"X-API-Key": secret}
        bearer = {"Authorization": f"Bearer {secret}"}
        assert send_request(f"{service.url}/v1/rank", body, headers=bearer).status == 200
        assert send_request(f"{service.url}/v1/rank", body).status == 401
        assert send_request(f"{service.url}/v2/health/ready").status == 200
        assert send_request(f"{service.url}/metrics", headers=header).status == 404
        assert send_request(f"{operations}/metrics").status == 200
        assert send_request(f"{operations}/v2/models/feed", headers=header).status == 404
        assert send_request(f"{operations}/v1/rank", body, headers=header).status == 404
        service.process.terminate()
        service.process.wait(TIMEOUT_SECONDS)
        output = service.output()
    assert "tests" in output, "the log names the key"
    assert secret not in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "there are no API keys: make one with 'ranker keys new"),
        (["--host", "0.0.0.0", "--keys", "nowhere.json"], "nowhere.json: cannot be read"),
        (["--keys", "nowhere.json", "--no-keys"], "keys and no_keys are mutually exclusive"),
        (["--port", "8123", "--operations-port", "8123"], "is the service's own port"),
    ],
)
def test_serve_with_invalid_options_fails_with_a_message(
    repository: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["serve", str(repository), *options]) == 1
    assert message in capsys.readouterr().err


def test_serve_with_an_occupied_operations_port_names_the_option(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with occupied_port() as port:
        assert main(["serve", str(repository), "--port", "0", "--operations-port", str(port)]) == 1
    error = capsys.readouterr().err
    assert f"127.0.0.1:{port} cannot be listened on" in error
    assert "choose another --operations-port" in error
