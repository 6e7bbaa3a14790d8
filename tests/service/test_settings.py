"""Settings: sources, precedence and error messages."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ranking.errors import ConfigError
from service.settings import PREFIX, REMOVED, TEST_VARIABLES, Settings, describe_setting, load_settings

REPOSITORY: dict[str, Any] = {"repository": Path("repository")}
MIB = 1024 * 1024


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "service.toml"


def test_load_settings_prefers_command_line_then_environment_then_file(file: Path) -> None:
    file.write_text("workers = 2\nmax_candidates = 20\nmax_batch_rows = 200")
    environ = {"RANKER_WORKERS": "3", "RANKER_MAX_CANDIDATES": "30", "HOME": "/"}
    settings = load_settings({**REPOSITORY, "workers": 4, "backend": None}, file, environ)
    assert (settings.workers, settings.max_candidates, settings.max_batch_rows) == (4, 30, 200)
    assert settings.backend == "auto"


@pytest.mark.parametrize(
    ("text", "environ", "message"),
    [
        ("wrokers = 2", {}, "service.toml: wrokers: unknown key"),
        ("max_candidates = 0", {}, "service.toml: max_candidates: must be greater than 0"),
        ("", {"RANKER_MAX_CANDIDATES": "many"}, "the environment: max_candidates: must be a whole number"),
        ("workers", {}, "service.toml is not valid TOML"),
        ("store = 'localhost:6379'", {}, "service.toml: store: is not a store address: write redis://HOST:PORT/DB"),
        ("store_timeout_ms = 0", {}, "service.toml: store_timeout_ms: must be greater than 0"),
        ("workers = 1.5", {}, r"service.toml: workers: must be a whole number \(got 1.5\)"),
        ("keys = {items = [1, 2]}", {}, r"service.toml: keys: must be text in quotes \(got a table\)"),
        ("served_log = {servers = 1}", {}, r"service.toml: served_log: must be text in quotes \(got a table\)"),
        ("feedback_reject = true", {}, r"feedback_reject: must be a list, or text with commas \(got true\)"),
    ],
)
def test_load_settings_invalid_setting_names_its_source(
    file: Path, text: str, environ: dict[str, str], message: str
) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_settings(REPOSITORY, file, environ)


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("max_queue_requests", "set max_queue_rows instead"),
        ("served_log_max_total_bytes", "set max_log_bytes instead"),
        ("max_header_bytes", "delete it; CHANGELOG.md lists what replaces it"),
    ],
)
def test_load_settings_removed_setting_names_its_replacement(file: Path, name: str, fix: str) -> None:
    message = f"{name}: this setting was removed: {fix}"
    with pytest.raises(ConfigError, match=f"the environment: {message}"):
        load_settings(REPOSITORY, environ={f"RANKER_{name.upper()}": "5"})
    file.write_text(f"{name} = 5")
    with pytest.raises(ConfigError, match=f"service.toml: {message}"):
        load_settings(REPOSITORY, file, {})


def test_removed_settings_are_in_the_changelog_and_have_replacements_that_exist() -> None:
    changelog = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    assert [name for name in REMOVED if f"`{name}`" not in changelog] == []
    assert not REMOVED.keys() & Settings.model_fields.keys()
    assert set(REMOVED.values()) - {None} <= Settings.model_fields.keys()


def test_describe_setting_names_the_default_once() -> None:
    assert describe_setting("backend").endswith("else 'onnxruntime'. Default: auto.")
    assert describe_setting("threads").count("Default") == 1
    assert describe_setting("feedback_reject").endswith("Default: time,value.")
    assert "Undefined" not in describe_setting("repository")
    assert describe_setting("keys").count("Default") == describe_setting("no_keys").count("Default") == 0


def test_load_settings_missing_file_raises_config_error(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"service\.toml: cannot be read"):
        load_settings(REPOSITORY, file, {})


@pytest.mark.parametrize("url", ["redis://:pass/word@host:6379", "http://user:password@host", "redis://:password@"])
def test_load_settings_invalid_store_address_hides_the_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(REPOSITORY, environ={"RANKER_STORE": url})
    assert "the environment: store: is not a store address" in str(caught.value)
    assert "pass" not in str(caught.value).replace("a password", "")


def test_settings_representations_hide_the_store_password() -> None:
    settings = load_settings(REPOSITORY, environ={"RANKER_STORE": "redis://user:password@host:6379/0"})
    assert settings.store is not None
    assert settings.store.get_secret_value() == "redis://user:password@host:6379/0"
    assert "password" not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"


def test_threads_default_to_the_cores_divided_by_the_workers() -> None:
    cores = len(os.sched_getaffinity(0))
    assert load_settings(REPOSITORY, environ={}).threads == cores
    assert load_settings(REPOSITORY, environ={"RANKER_WORKERS": "1"}).threads == cores
    assert load_settings({**REPOSITORY, "workers": cores}, environ={}).threads == 1
    assert load_settings({**REPOSITORY, "workers": 10 * cores}, environ={}).threads == 1


def test_threads_setting_overrides_the_default() -> None:
    assert load_settings({**REPOSITORY, "workers": 2, "threads": 3}, environ={}).threads == 3


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("RANKER_WROKERS", r"RANKER_WROKERS: unknown setting; did you mean RANKER_WORKERS\?"),
        ("RANKER_MAX_CANDIDATE", r"did you mean RANKER_MAX_CANDIDATES\?"),
        ("RANKER_max_candidates", "RANKER_max_candidates: unknown setting"),
        ("RANKER_COLOR", "RANKER_COLOR: unknown setting; docs/settings.md lists the settings"),
        ("RANKER_", "RANKER_: unknown setting"),
        ("RANKER_PORT", "RANKER_PORT: unknown setting; use the option --port"),
        ("RANKER_HOST", "RANKER_HOST: unknown setting; use the option --host"),
    ],
)
def test_load_settings_unknown_variable_names_it_and_the_fix(variable: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^the environment: .*{message}"):
        load_settings(REPOSITORY, environ={variable: "9000"})


def test_load_settings_ignores_variables_of_kubernetes_services_and_of_tests() -> None:
    """As set for the Services ``ranker``, ``ranker-operations`` and ``ranker-redis`` if service links are enabled."""
    environ = {"RANKER_DATA": "data", "RANKER_SOAK_SECONDS": "9", "RANKERS": "1", "MY_RANKER_X": "1"}
    for service, port in (("RANKER", 80), ("RANKER_OPERATIONS", 8001), ("RANKER_REDIS", 6379)):
        environ |= {
            f"{service}_SERVICE_HOST": "10.0.0.11",
            f"{service}_SERVICE_PORT": str(port),
            f"{service}_SERVICE_PORT_HTTP": str(port),
            f"{service}_PORT": f"tcp://10.0.0.11:{port}",
            f"{service}_PORT_{port}_TCP": f"tcp://10.0.0.11:{port}",
            f"{service}_PORT_{port}_TCP_PROTO": "tcp",
            f"{service}_PORT_{port}_TCP_PORT": str(port),
            f"{service}_PORT_{port}_TCP_ADDR": "10.0.0.11",
        }
    assert load_settings(REPOSITORY, environ=environ) == load_settings(REPOSITORY, environ={})
    assert load_settings(REPOSITORY, environ={"RANKER_OPERATIONS_PORT": "9001"}).operations_port == 9001


def test_every_variable_of_the_repository_is_known() -> None:
    root = Path(__file__).parents[2]
    files = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    texts = [
        (root / name).read_text(errors="replace")
        for name in files.split("\0")
        if name.startswith((".ci", "deploy", "docs", "Dockerfile", "Makefile", "README", "CONTRIBUTING"))
    ]
    variables = set(re.findall(r"\bRANKER_[A-Z_]*[A-Z]\b", "".join(texts)))
    assert {"RANKER_KEYS", "RANKER_DATA", "RANKER_SOAK_SECONDS"} <= variables
    known = {PREFIX + name.upper() for name in Settings.model_fields} | TEST_VARIABLES
    assert variables - {"RANKER_SERVICE_HOST", "RANKER_PORT"} <= known  # examples of Kubernetes' variables


@pytest.mark.parametrize(
    ("options", "budget"),
    [
        ({}, 256 * MIB),
        ({"workers": 4}, 64 * MIB),
        ({"workers": 64}, 32 * MIB),
        ({"max_body_bytes": 100 * MIB}, 400 * MIB),
    ],
)
def test_settings_body_budget_is_shared_by_workers(options: dict[str, int], budget: int) -> None:
    assert load_settings(REPOSITORY | options, environ={}).body_budget == budget


@pytest.mark.parametrize(
    ("options", "copies"),
    [
        ({}, True),
        ({"workers": 2}, False),
        ({"workers": 2, "copy_tables": True}, True),
        ({"copy_tables": False}, False),
    ],
)
def test_tables_are_copied_by_default_with_one_worker_only(options: dict[str, Any], copies: bool) -> None:
    assert load_settings(REPOSITORY | options, environ={}).copies_tables is copies
