"""Settings: sources, precedence and error messages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ranking.errors import ConfigError
from service.settings import load_settings

REPOSITORY = {"repository": Path("repository")}


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
    ],
)
def test_load_settings_invalid_setting_names_its_source(
    file: Path, text: str, environ: dict[str, str], message: str
) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_settings(REPOSITORY, file, environ)


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
    assert load_settings({**REPOSITORY, "workers": cores}, environ={}).threads == 1
    assert load_settings({**REPOSITORY, "workers": 10 * cores}, environ={}).threads == 1


def test_threads_setting_overrides_the_default() -> None:
    assert load_settings({**REPOSITORY, "workers": 2, "threads": 3}, environ={}).threads == 3
