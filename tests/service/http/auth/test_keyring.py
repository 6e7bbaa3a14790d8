"""Valid keys while the key file changes."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ranking.errors import ConfigError
from service.http.auth.keys import CHECK_SECONDS, Keyring, create_key, revoke_key


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def key_name(keyring: Keyring, secret: str) -> str | None:
    key = keyring.find(secret.encode())
    return key.name if key else None


def test_keyring_finds_each_key_and_no_other(file: Path, clock: Clock) -> None:
    secrets = {name: create_key(file, name, ("rank",)) for name in ("a", "b", "c")}
    keyring = Keyring(file, clock)
    assert {name: key_name(keyring, secret) for name, secret in secrets.items()} == {name: name for name in secrets}
    for wrong in ("", "a", secrets["a"][:-1], secrets["a"] + "x", secrets["a"].upper()):
        assert key_name(keyring, wrong) is None
    assert keyring.find(b"\xff\x00") is None


def test_keyring_changed_file_takes_effect_at_the_next_check(file: Path, clock: Clock) -> None:
    old = create_key(file, "old", ("rank",))
    keyring = Keyring(file, clock)
    new = create_key(file, "new", ("rank",))
    revoke_key(file, "old")
    clock.now = CHECK_SECONDS / 2
    assert (key_name(keyring, old), key_name(keyring, new)) == ("old", None)
    clock.now = CHECK_SECONDS
    assert (key_name(keyring, old), key_name(keyring, new)) == (None, "new")


@pytest.mark.parametrize("damaged", ["{", None], ids=["damaged", "missing"])
def test_keyring_damaged_file_keeps_the_keys_and_is_logged_once(
    file: Path, clock: Clock, caplog: pytest.LogCaptureFixture, damaged: str | None
) -> None:
    secret = create_key(file, "app", ("rank",))
    keyring = Keyring(file, clock)
    if damaged is None:
        file.unlink()
    else:
        file.write_text(damaged)
    for clock.now in (1.0, 2.0, 3.0):
        assert key_name(keyring, secret) == "app"
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage().startswith("the API keys stay as they were: ") for record in errors] == [True]
    file.write_text('{"keys": []}')
    clock.now = 4.0
    assert key_name(keyring, secret) is None


def test_keyring_without_a_file_raises_config_error(file: Path) -> None:
    with pytest.raises(ConfigError, match="ranker keys new"):
        Keyring(file)


def test_keyring_world_readable_file_is_warned_of(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    create_key(file, "app", ("rank",))
    Keyring(file)
    assert "chmod 600" not in caplog.text
    file.chmod(0o644)
    Keyring(file)
    assert "chmod 600" in caplog.text
