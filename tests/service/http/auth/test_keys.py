"""The key file: its content, its changes, and the errors of an invalid one."""

from __future__ import annotations

import hashlib
import json
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.main import main
from ranking.errors import ConfigError, OutputError
from service.http.auth.keys import create_key, read_keys, revoke_key

HASH = "0" * 64


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_create_key_stores_only_its_hash_readable_by_the_owner(file: Path) -> None:
    secret = create_key(file, "app", ("rank", "feedback"))
    assert secret.startswith("ranker_")
    assert len(secret) >= len("ranker_") + 43  # 32 bytes in base 64
    assert secret not in file.read_text()
    (key,) = read_keys(file)
    assert (key.name, key.scopes, key.expires) == ("app", ("rank", "feedback"), None)
    assert key.sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_create_and_revoke_key_keep_the_other_keys(file: Path) -> None:
    secrets = {create_key(file, name, ("rank",)) for name in ("a", "b", "c")}
    assert len(secrets) == 3
    revoke_key(file, "b")
    assert [key.name for key in read_keys(file)] == ["a", "c"]


def test_create_key_keeps_the_mode_and_link_of_the_file(file: Path, tmp_path: Path) -> None:
    create_key(file, "a", ("rank",))
    file.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(file)
    create_key(link, "b", ("rank",))
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert len(read_keys(file)) == 2


def test_create_key_concurrently_keeps_all_keys(file: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: create_key(file, f"k{i}", ("rank",)), range(24)))
    assert {key.name for key in read_keys(file)} == {f"k{i}" for i in range(24)}


def test_create_and_revoke_key_with_an_invalid_name_raise(file: Path) -> None:
    create_key(file, "app", ("rank",))
    with pytest.raises(ConfigError, match=r"keys\.json: a key named 'app' exists"):
        create_key(file, "app", ("rank",))
    with pytest.raises(ConfigError, match="no key is named 'ap'; existing keys: app"):
        revoke_key(file, "ap")
    with pytest.raises(ConfigError, match="name: use up to 64 letters"):
        create_key(file, "line\nbreak", ("rank",))
    with pytest.raises(OutputError, match="there is no folder"):
        create_key(file.parent / "nowhere" / "keys.json", "app", ("rank",))


VALID: dict[str, Any] = {"name": "app", "sha256": HASH, "scopes": ["rank"]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "keys: missing"),
        ({"keys": [VALID | {"scope": ["rank"]}]}, "'app'.scope: unknown key"),
        ({"keys": [VALID | {"scopes": ["all"]}]}, "choose 'rank', 'feedback', 'read' or 'admin'"),
        ({"keys": [VALID | {"scopes": []}]}, "must hold at least 1 entry"),
        ({"keys": [VALID | {"expires": "soon"}]}, "expires"),
        ({"keys": [VALID | {"expires": "2027-01-01T00:00:00"}]}, "timezone"),
        ({"keys": [VALID, VALID | {"sha256": "1" * 64}]}, "two have the same name"),
        ({"keys": [VALID, VALID | {"name": "other"}]}, "two have the same sha256"),
    ],
)
def test_read_keys_with_invalid_content_names_the_field(file: Path, data: Any, message: str) -> None:
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError) as raised:
        read_keys(file)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"{file}: ")


@pytest.mark.parametrize("content", [b"{", b"\xff"])
def test_read_keys_with_invalid_json_raises_config_error(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="is not valid JSON"):
        read_keys(file)


def test_read_keys_with_a_key_instead_of_its_hash_does_not_show_it(file: Path) -> None:
    file.write_text(json.dumps({"keys": [VALID | {"sha256": "ranker_secret"}]}))
    with pytest.raises(ConfigError, match="write the key's SHA-256") as raised:
        read_keys(file)
    assert "ranker_secret" not in str(raised.value)


def test_key_expires_at_its_expiry_time(file: Path) -> None:
    now = datetime.now(UTC)
    create_key(file, "app", ("rank",), now + timedelta(days=1))
    (key,) = read_keys(file)
    assert not key.expired(now)
    assert key.expired(now + timedelta(days=1))


def test_keys_new_prints_only_the_key_on_stdout(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", str(file), "--name", "app", "--scopes", "rank", "feedback", "--days", "7"]) == 0
    printed = capsys.readouterr()
    (key,) = read_keys(file)
    assert hashlib.sha256(printed.out.strip().encode()).hexdigest() == key.sha256
    assert "not shown again" in printed.err
    assert key.expires is not None
    assert timedelta(days=6.9) < key.expires - datetime.now(UTC) <= timedelta(days=7)


def test_keys_list_prints_all_fields_but_the_hashes(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create_key(file, "app", ("rank", "feedback"))
    create_key(file, "old", ("admin",), datetime(2020, 1, 1, tzinfo=UTC))
    assert main(["keys", "list", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "app  rank feedback  never expires",
        "old  admin  expired 2020-01-01T00:00:00Z",
    ]
    assert main(["keys", "list", str(file), "--json"]) == 0
    assert [key["expired"] for key in json.loads(capsys.readouterr().out)["keys"]] == [False, True]


def test_keys_revoke_removes_the_key(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create_key(file, "app", ("rank",))
    assert main(["keys", "revoke", str(file), "ap"]) == 1
    assert "existing keys: app" in capsys.readouterr().err
    assert main(["keys", "revoke", str(file), "app"]) == 0
    assert read_keys(file) == ()
