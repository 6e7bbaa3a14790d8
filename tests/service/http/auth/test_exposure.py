"""What an address needs that others can reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranking.errors import ConfigError
from service.main import choose_operations_port, is_loopback, require_keys
from service.settings import Settings, load_settings

REPOSITORY = Path("repository")
SETTINGS = Settings(repository=REPOSITORY)
OPEN = ["0.0.0.0", "::", "", "10.0.0.1", "::ffff:10.0.0.1", "ranker.example", "localhost.example"]
LOOPBACK = ["127.0.0.1", "127.8.0.1", "::1", "localhost"]


@pytest.mark.parametrize("host", LOOPBACK)
def test_on_loopback_nothing_is_needed(host: str) -> None:
    assert is_loopback(host)
    require_keys(SETTINGS, host)
    assert choose_operations_port(SETTINGS, host, 8000) is None
    assert choose_operations_port(SETTINGS.model_copy(update={"operations_port": 9000}), host, 8000) == 9000


@pytest.mark.parametrize("host", OPEN)
def test_elsewhere_keys_are_needed_or_a_word(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match=r"ranker keys new .* --keys FILE, or pass --no-keys"):
        require_keys(SETTINGS, host)
    require_keys(Settings(repository=REPOSITORY, no_keys=True), host)
    require_keys(Settings(repository=REPOSITORY, keys=Path("keys.json")), host)


@pytest.mark.parametrize("host", OPEN)
def test_elsewhere_operations_have_a_port_of_their_own(host: str) -> None:
    assert choose_operations_port(SETTINGS, host, 8000) == 8001
    assert choose_operations_port(SETTINGS.model_copy(update={"operations_port": 9000}), host, 8000) == 9000


def test_which_is_not_that_of_the_rest() -> None:
    with pytest.raises(ConfigError, match="operations_port = 8001 is the service's own port: choose another"):
        choose_operations_port(SETTINGS, "0.0.0.0", 8001)
    assert choose_operations_port(SETTINGS.model_copy(update={"operations_port": 0}), "127.0.0.1", 0) == 0


def test_keys_and_no_keys_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="keys and no_keys are mutually exclusive"):
        load_settings({"repository": REPOSITORY, "no_keys": True}, None, {"RANKER_KEYS": "keys.json"})
