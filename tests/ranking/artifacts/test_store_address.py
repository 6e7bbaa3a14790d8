"""Addresses of the feature store."""

from __future__ import annotations

import urllib.parse
from urllib.parse import SplitResult

import pytest

from ranking.artifacts import store_address
from ranking.artifacts.store_address import StoreAddress, check_address, redact_address


def test_parse_returns_the_hosts_and_the_address_of_one_server() -> None:
    server = StoreAddress.parse("redis://user:p%40ss@host:6380/2?socket_keepalive=yes")
    assert (server.kind, server.hosts) == ("server", (("host", 6380),))
    assert server.server_url == "redis://user:p%40ss@host:6380/2?socket_keepalive=yes"
    cluster = StoreAddress.parse("rediss+cluster://user:p%40ss@a:7000,[::1]?ssl_ca_certs=/ca.pem")
    assert (cluster.kind, cluster.hosts) == ("cluster", (("a", 7000), ("::1", 6379)))
    assert cluster.server_url == "rediss://user:p%40ss@a:7000/?ssl_ca_certs=%2Fca.pem"


def test_parse_separates_the_options_of_sentinels() -> None:
    url = "redis+sentinel://:a@h1,h2:5000/my%20feed/3?sentinel_password=b%26c&sentinel_username=d&socket_keepalive=yes"
    address = StoreAddress.parse(url)
    assert (address.kind, address.hosts) == ("sentinel", (("h1", 26379), ("h2", 5000)))
    assert (address.service, address.sentinel_options) == ("my feed", {"password": "b&c", "username": "d"})
    assert address.server_url == "redis://:a@h1:26379/3?socket_keepalive=yes"
    assert "b&c" not in repr(address)
    assert ":a@" not in repr(address)


@pytest.mark.parametrize(
    ("url", "redacted"),
    [
        ("redis://host", "redis://host"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://user:p%40ss@host:6379/2?socket_keepalive=yes", "redis://host:6379/2"),
        ("rediss://:secret@[::1]:6380/?ssl_ca_certs=/ca.pem", "rediss://[::1]:6380/"),
        ("unix:///run/redis.sock?db=1&password=secret", "unix:///run/redis.sock"),
        ("unix://user@/run/redis.sock", "unix:///run/redis.sock"),
        ("redis+cluster://:secret@a:7000,b,[::1]:7001/?socket_keepalive=yes", "redis+cluster://a:7000,b,[::1]:7001/"),
        ("rediss+cluster://a/0", "rediss+cluster://a/0"),
        ("redis+sentinel://:se%40cret@a,b:5/feed/2?sentinel_password=secret", "redis+sentinel://a,b:5/feed/2"),
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
        "redis://user:se[cret@host:1",
        "redis://user:se℀cret@host:1",
        " redis://host",
        "redis://host\n",
        "redis://h\tost",
        "unix://",
        "unix://run",
        "redis://a,b",
        "redis+cluster://",
        "redis+cluster://a,,b",
        "redis+cluster://a:0",
        "redis+cluster://a/1",
        "redis+sentinel://a",
        "redis+sentinel://a/",
        "redis+sentinel://a/feed/first",
        "redis+sentinel://a/feed/0/1",
        "redis+unix:///run/redis.sock",
    ],
)
def test_check_address_invalid_address_is_rejected_without_quoting_it(url: str) -> None:
    with pytest.raises(ValueError, match="is not a store address: write redis://HOST:PORT/DB") as caught:
        check_address(url)
    assert "cret" not in str(caught.value)


def test_several_hosts_do_not_depend_on_the_url_parser_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Security releases of Python reject an IPv6 address that does not start the hosts."""

    def urlsplit(url: str) -> SplitResult:
        parts = urllib.parse.urlsplit(url)
        if "[" in parts.netloc and not parts.netloc.startswith("["):
            raise ValueError("Invalid IPv6 URL")
        return parts

    monkeypatch.setattr(store_address, "urlsplit", urlsplit)
    address = StoreAddress.parse("rediss+cluster://user:p%40ss@a:7000,[::1]")
    assert address.hosts == (("a", 7000), ("::1", 6379))


def test_address_of_a_socket_is_kept_for_redis() -> None:
    url = "unix://user:p%40ss@/run/redis.sock?db=1"
    address = StoreAddress.parse(url)
    assert (address.kind, address.hosts, address.server_url) == ("server", (), url)
    assert StoreAddress.parse("unix:///run/redis.sock").server_url == "unix:///run/redis.sock"
