"""Keys and addresses of the feature store."""

from __future__ import annotations

import pytest

from ranking.artifacts.feature_store_keys import check_address, key_prefix, redact_address


def test_key_prefix_joins_prefix_model_and_owner() -> None:
    assert key_prefix("ranker", "feed", "item") == "ranker:feed:item:"


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("redis://host", "redis://host"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://user:p%40ss@host:6379/2?socket_keepalive=yes", "redis://host:6379/2"),
        ("rediss://:secret@[::1]:6380/?ssl_ca_certs=/ca.pem", "rediss://[::1]:6380/"),
        ("unix:///run/redis.sock?db=1&password=secret", "unix:///run/redis.sock"),
        ("unix://user@/run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_redact_address_removes_secrets(url: str, redacted: str) -> None:
    assert check_address(url) == url
    assert redact_address(url) == redacted


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:6379",
        "http://host",
        "redis://",
        "redis://:secret@",
        "redis://host:port",
        "redis://host:0",
        "redis://host:99999",
        "redis://host/first",
        "redis://host/0/1",
        "redis://host#0",
        "redis://[::1",
        "redis://:se/cret@host",
        "redis://user:se#cret@host",
        "redis://user:se?cret@host:1",
        "unix://",
        "unix://run",
    ],
)
def test_check_address_invalid_address_is_rejected_without_quoting_it(url: str) -> None:
    with pytest.raises(ValueError, match="is not a store address: write redis://HOST:PORT/DB") as caught:
        check_address(url)
    assert "cret" not in str(caught.value)
