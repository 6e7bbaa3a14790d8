"""What an address that others can reach needs: a port of its own for operations, and keys."""

from __future__ import annotations

from ipaddress import ip_address

from ranking.errors import ConfigError
from service.settings import Settings

OPERATIONS_PORT = 8001
"""Where operations are if the service can be reached from other machines and nothing else is set."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; a name other than localhost may be anything."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def operations_port(settings: Settings, host: str, port: int) -> int | None:
    """The port of metrics and admin operations; None: that of all the rest.

    Raises:
        ConfigError: it is that of all the rest.
    """
    chosen = settings.operations_port
    if chosen is None and not is_loopback(host):
        chosen = OPERATIONS_PORT
    if chosen == port and port != 0:
        raise ConfigError(f"operations_port = {chosen} is the service's own port: choose another --operations-port")
    return chosen


def require_keys(settings: Settings, host: str) -> None:
    """Refuses to serve strangers without keys, unless the operator says so.

    Raises:
        ConfigError: the address can be reached by others, there are no keys, and nothing says that none are wanted.
    """
    if settings.keys is None and not settings.no_keys and not is_loopback(host):
        raise ConfigError(
            f"other machines can reach {host}, and there are no API keys: make one with 'ranker keys new FILE --name "
            "NAME --scopes rank' and serve with --keys FILE, or say --no-keys if something else keeps strangers out"
        )
