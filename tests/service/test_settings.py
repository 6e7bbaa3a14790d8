"""Where settings come from, which place wins, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranking.errors import ConfigError
from service.settings import read

REPOSITORY = {"repository": Path("repository")}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "service.toml"


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(file: Path) -> None:
    file.write_text("workers = 2\nmax_candidates = 20\nmax_batch_rows = 200")
    environ = {"RANKER_WORKERS": "3", "RANKER_MAX_CANDIDATES": "30", "HOME": "/"}
    settings = read({**REPOSITORY, "workers": 4, "backend": None}, file, environ)
    assert (settings.workers, settings.max_candidates, settings.max_batch_rows) == (4, 30, 200)
    assert settings.backend == "auto"


@pytest.mark.parametrize(
    ("text", "environ", "said"),
    [
        ("wrokers = 2", {}, "service.toml: wrokers: unknown key"),
        ("max_candidates = 0", {}, "service.toml: max_candidates: must be greater than 0"),
        ("", {"RANKER_MAX_CANDIDATES": "many"}, "the environment: max_candidates: must be a whole number"),
        ("workers", {}, "service.toml is no TOML"),
        ("store = 'localhost:6379'", {}, "service.toml: store: is no address of a store: write redis://HOST:PORT/DB"),
        ("store_timeout_ms = 0", {}, "service.toml: store_timeout_ms: must be greater than 0"),
    ],
)
def test_a_wrong_one_is_told_with_its_place(file: Path, text: str, environ: dict[str, str], said: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read(REPOSITORY, file, environ)


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"service\.toml: cannot be read"):
        read(REPOSITORY, file, {})


@pytest.mark.parametrize("url", ["redis://:pass/word@host:6379", "http://user:password@host", "redis://:password@"])
def test_a_wrong_address_of_a_store_is_told_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(REPOSITORY, environ={"RANKER_STORE": url})
    assert "the environment: store: is no address" in str(caught.value)
    assert "pass" not in str(caught.value).replace("a password", "")


def test_settings_are_shown_without_the_password() -> None:
    settings = read(REPOSITORY, environ={"RANKER_STORE": "redis://user:password@host:6379/0"})
    assert settings.store is not None
    assert settings.store.get_secret_value() == "redis://user:password@host:6379/0"
    assert "password" not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
