"""pyproject.toml declares what the packages import, and serving works with the base dependencies alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
PACKAGES = ("ranking", "service", "pipelines")
OPTIONAL_MODULES = (
    *("torch", "torchrec", "fbgemm_gpu", "optuna", "sklearn", "scipy", "lightgbm", "tensorboard", "mlflow"),
    *("redis", "hiredis", "confluent_kafka", "obstore", "jinja2", "opentelemetry.sdk", "opentelemetry.exporter"),
)
TRANSITIVE = {
    "starlette",
    "pydantic-core",
    "fbgemm-gpu",
    "fbgemm-gpu-cpu",
    "protobuf",
    "opentelemetry-api",
    "opentelemetry-sdk",
}
"""Distributions that a declared one requires and whose types its API exposes."""

SERVE_ONE_REQUEST = """
import sys
for name in {modules!r}:
    sys.modules[name] = None  # as if it were not installed

from pathlib import Path

from fastapi.testclient import TestClient

import service.main
from pipelines.cli.main import main
from service.app import create_app
from service.settings import Settings

assert main(["keys", "list", sys.argv[2]]) == 1  # reports a missing key file; any command shows that the CLI works
with TestClient(create_app(Settings(repository=Path(sys.argv[1])))) as client:
    response = client.post("/v1/rank", json={{"user": {{"id": "u1"}}, "items": [{{"id": "v1"}}, {{"id": "v2"}}]}})
assert response.status_code == 200, response.text
assert len(response.json()["items"]) == 2
"""


def distribution_name(requirement: str) -> str:
    """Return the normalized distribution name of a requirement."""
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None, requirement
    return match[0].lower().replace("_", "-").replace(".", "-")


def imported_modules() -> set[str]:
    """Return the top-level names of all modules that the packages import."""
    names = set()
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - set(PACKAGES)


def test_every_imported_distribution_is_declared() -> None:
    declared = {distribution_name(r) for rs in (PROJECT["dependencies"], *EXTRAS.values()) for r in rs}
    providers = packages_distributions()
    undeclared = {
        module: names
        for module in imported_modules()
        if (names := {distribution_name(name) for name in providers.get(module, [])})
        and not names & (declared | TRANSITIVE)
    }
    assert not undeclared


def test_base_dependencies_leave_out_what_extras_declare() -> None:
    base = {distribution_name(requirement) for requirement in PROJECT["dependencies"]}
    assert set(EXTRAS) == {
        *("client", "torch", "train", "redis", "kafka", "object-storage", "report", "baselines", "mlflow"),
        *("ray", "spark", "postgresql", "tracing"),
    }
    assert not base & {
        "torch",
        "torchrec",
        "redis",
        "hiredis",
        "httpx2",
        "confluent-kafka",
        "obstore",
        "jinja2",
        "optuna",
        "scikit-learn",
        "scipy",
        "lightgbm",
        "tensorboard",
    }


def test_dependencies_that_are_subclassed_have_an_upper_bound() -> None:
    subclassed = [r for r in PROJECT["dependencies"] if distribution_name(r) in ("uvicorn", "fastapi")]
    assert len(subclassed) == 2
    assert not [r for r in subclassed if not re.fullmatch(r"\w+>=[\d.]+,<[\d.]+", r)]


def test_service_ranks_with_the_base_dependencies_alone(repository: Path, tmp_path: Path) -> None:
    script = SERVE_ONE_REQUEST.format(modules=OPTIONAL_MODULES)
    command = [sys.executable, "-c", script, str(repository), str(tmp_path / "keys.json")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
