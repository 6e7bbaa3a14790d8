"""The contract of a store that several programs share: how its address is written, its keys, its values.

One key an id, ``PREFIX:MODEL:item:ID`` or ``PREFIX:MODEL:user:ID``; its value is a JSON object of column → value, so
that any program can refresh an item with one SET.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from ranking.schema import Owner

PREFIX = "ranker"
"""Of all keys, unless it is set otherwise."""

FORMS = "redis://HOST:PORT/DB, rediss://HOST:PORT/DB (TLS) or unix:///PATH"


def key_prefix(prefix: str, model: str, owner: Owner) -> str:
    """What stands before the id in each key."""
    return f"{prefix}:{model}:{owner}:"


def require_address(url: str) -> str:
    """The address, if it is one.

    Raises:
        ValueError: it is none; the message quotes nothing of it, for it may hold a password.
    """
    if not _is_address(url):
        raise ValueError(
            f"is no address of a store: write {FORMS}; in a user name or a password write '/', '@', ':', '?', '#' and "
            "'%' as %2F, %40, %3A, %3F, %23 and %25"
        )
    return url


def redact_address(url: str) -> str:
    """How messages call an address: without user name, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def unsupported_address(url: str) -> str:
    """What to tell of an address with an option that its client does not know, or a value that is none of the option's.

    Passwords may be options, so only names are told.
    """
    names = ", ".join(name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True))
    return (
        f"{redact_address(url)}: an option of the address ({names}) is none that redis-py knows, or has a wrong value"
    )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        path, there = parts.path.removeprefix("/"), parts.hostname is not None and parts.port != 0
    except ValueError:  # no port, or half of an IPv6 address
        return False
    if parts.scheme == "unix":
        return bool(path) and not parts.fragment
    return parts.scheme in ("redis", "rediss") and there and not parts.fragment and (not path or path.isdecimal())
