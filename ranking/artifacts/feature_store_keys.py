"""Address and keys of the online feature store, which several programs share.

One key per id: ``PREFIX:MODEL:item:ID`` or ``PREFIX:MODEL:user:ID``. The value is a JSON object from column to
value, so that any program can update an item with one SET.

The sums of counters have keys of their own, because such a SET would erase them: ``PREFIX:MODEL:counters:ROOT:HASH``,
see ``ranking.counters.stored_sums``.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from ranking.schema import Owner

DEFAULT_KEY_PREFIX = "ranker"
"""Default prefix of all keys."""

ADDRESS_FORMS = "redis://HOST:PORT/DB, rediss://HOST:PORT/DB (TLS) or unix:///PATH"


def key_prefix(prefix: str, model: str, owner: Owner) -> str:
    """Return the part of a key before the id."""
    return f"{prefix}:{model}:{owner}:"


def counter_prefix(prefix: str, model: str) -> str:
    """Return the start of all keys of counters, which no key of a user or an item has.

    It is followed by ``state``, ``applied``, or the kind of a root and the hash of the root.
    """
    return f"{prefix}:{model}:counters:"


def counter_key(start: str, root: str, root_hash: int) -> str:
    """Return the key of the sums of one root; ``start`` is a ``counter_prefix``."""
    return f"{start}{root}:{root_hash:x}"


def check_address(url: str) -> str:
    """Return the address if it is valid.

    Raises:
        ValueError: it is not valid; the message does not quote the address, which may hold a password.
    """
    if not _is_address(url):
        raise ValueError(
            f"is not a store address: write {ADDRESS_FORMS}; in a user name or a password write '/', '@', ':', '?', "
            "'#' and '%' as %2F, %40, %3A, %3F, %23 and %25"
        )
    return url


def redact_address(url: str) -> str:
    """Return the address for messages: without user name, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def unsupported_option_message(url: str) -> str:
    """Return the message for an address with an option or a value that redis-py does not support.

    It contains only the names of the options, because their values may be passwords.
    """
    names = ", ".join(name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True))
    return f"{redact_address(url)}: redis-py does not know an option of the address ({names}), or its value is invalid"


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        path, has_host = parts.path.removeprefix("/"), parts.hostname is not None and parts.port != 0
    except ValueError:  # The port is not a number, or an IPv6 address is incomplete.
        return False
    if parts.scheme == "unix":
        return bool(path) and not parts.fragment
    return parts.scheme in ("redis", "rediss") and has_host and not parts.fragment and (not path or path.isdecimal())
