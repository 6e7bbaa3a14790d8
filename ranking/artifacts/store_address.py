"""Address of the online feature store: one Redis server, a Redis Cluster, or a primary that Redis Sentinel names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

Kind = Literal["server", "cluster", "sentinel"]

ADDRESS_FORMS = (
    "redis://HOST:PORT/DB, unix:///PATH, redis+cluster://HOST:PORT,HOST:PORT or "
    "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB (rediss… for TLS)"
)
PORT, SENTINEL_PORT = 6379, 26379
"""Default ports of servers and of Sentinels."""
SENTINEL_OPTION = "sentinel_"
"""Start of the options that apply to connections to Sentinels."""

_SCHEME = re.compile(r"(rediss?)(?:\+(cluster|sentinel))?")
_URL = re.compile(r"([^:/?#]+)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(?:#(.*))?")


@dataclass(frozen=True)
class StoreAddress:
    """A parsed address.

    Attributes:
        kind: kind of the store.
        hosts: host and port of the server, of some servers of the cluster, or of the Sentinels; none for a socket.
        server_url: address of one server for redis-py: the first of ``hosts``, with the credentials, the database and
            the options of all servers. For a Sentinel, the host is to be replaced by that of the primary.
        service: name of the primary at the Sentinels.
        sentinel_options: options of connections to Sentinels, without ``SENTINEL_OPTION``.
    """

    kind: Kind
    hosts: tuple[tuple[str, int], ...]
    server_url: str = field(repr=False)
    service: str = ""
    sentinel_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse an address.

        Raises:
            ValueError: it is not valid; the message does not quote the address, which may hold a password.
        """
        try:
            return cls._parse(_split(url))
        except ValueError:  # also of a port that is not a number, and of an incomplete IPv6 address
            raise ValueError(
                f"is not a store address: write {ADDRESS_FORMS}; in a user name or a password write '/', '@', ':', "
                "'?', '#', '[', ']' and '%' as %2F, %40, %3A, %3F, %23, %5B, %5D and %25"
            ) from None

    @classmethod
    def _parse(cls, parts: SplitResult) -> Self:
        path, match = parts.path.removeprefix("/"), _SCHEME.fullmatch(parts.scheme)
        if parts.fragment or (match is None and (parts.scheme != "unix" or not path)):
            raise ValueError
        if match is None:
            return cls("server", (), f"unix://{parts.netloc}{parts.path}{parts.query and '?'}{parts.query}")
        protocol, kind = match[1], match[2]
        credentials, at, hosts_text = parts.netloc.rpartition("@")
        urlsplit(f"//{credentials}{at}host")  # raises for characters that redis-py rejects
        default_port = SENTINEL_PORT if kind == "sentinel" else PORT
        hosts = tuple(_host(host, default_port) for host in hosts_text.split(","))
        service = ""
        if kind == "sentinel":
            service, _, path = path.partition("/")
            if not service:
                raise ValueError
        elif kind == "cluster":
            if path not in ("", "0"):  # a cluster has one database
                raise ValueError
        elif len(hosts) > 1:
            raise ValueError
        if path and not path.isdecimal():
            raise ValueError
        options = parse_qsl(parts.query, keep_blank_values=True)
        server_options = [pair for pair in options if kind != "sentinel" or not pair[0].startswith(SENTINEL_OPTION)]
        sentinel = {name.removeprefix(SENTINEL_OPTION): text for name, text in set(options) - set(server_options)}
        host, port = hosts[0]
        host = f"[{host}]" if ":" in host else host
        server = SplitResult(protocol, f"{credentials}{at}{host}:{port}", f"/{path}", urlencode(server_options), "")
        server_url = server.geturl() if kind else parts.geturl()
        return cls(match[2] or "server", hosts, server_url, unquote(service), sentinel)  # type: ignore[arg-type]


def check_address(url: str) -> str:
    """Return the address if it is valid.

    Raises:
        ValueError: it is not valid; the message does not quote the address, which may hold a password.
    """
    StoreAddress.parse(url)
    return url


def redact_address(url: str) -> str:
    """Return the address for messages: without user name, password and options."""
    parts = _split(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def unsupported_option_message(url: str) -> str:
    """Return the message for an address with an option or a value that redis-py does not support.

    It contains only the names of the options, because their values may be passwords.
    """
    names = ", ".join(name for name, _ in parse_qsl(_split(url).query, keep_blank_values=True))
    return f"{redact_address(url)}: redis-py does not know an option of the address ({names}), or its value is invalid"


def _split(url: str) -> SplitResult:
    """Split an address; ``urlsplit`` of recent Pythons rejects several hosts of which not the first is an IPv6 address.

    Raises:
        ValueError: the address has no scheme, contains a control character, or starts or ends with a space.
    """
    match = _URL.fullmatch(url)
    if match is None or url != url.strip() or not url.isprintable():
        raise ValueError
    scheme, netloc, path, query, fragment = match.groups("")
    return SplitResult(scheme.lower(), netloc, path, query, fragment)


def _host(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or parts.port == 0:
        raise ValueError
    return parts.hostname, parts.port or default_port
