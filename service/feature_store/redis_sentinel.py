"""Redis Sentinel as a key-value store: reads from the primary that the Sentinels name."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from redis.asyncio.connection import AbstractConnection, SSLConnection, parse_url
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import RedisError

from ranking.artifacts.store_address import StoreAddress, unsupported_option_message
from ranking.errors import ConfigError
from service.feature_store.pipelined_connection import CONNECT_SECONDS
from service.feature_store.redis import OPTIONS, SingleServerStore, connection_options


class SentinelStore(SingleServerStore):
    """Asks the Sentinels for the primary each time it connects. They close the connections to a former primary.

    Args:
        url: address of the form ``redis+sentinel://`` or ``rediss+sentinel://``.
        seconds: time limit of a lookup.

    Raises:
        ConfigError: the address has an unknown or invalid option.
    """

    def __init__(self, url: str, seconds: float) -> None:
        address = StoreAddress.parse(url)
        connection_class, options = connection_options(address.server_url, url)
        sentinel_options = _sentinel_options(address, url)

        async def create() -> AbstractConnection:
            manager = Sentinel(address.hosts, sentinel_kwargs=sentinel_options)
            try:
                host, port = await manager.discover_master(address.service)
            finally:
                for sentinel in manager.sentinels:
                    await sentinel.aclose()
            return connection_class(**options | {"host": host, "port": port})

        super().__init__(url, seconds, create)


def _sentinel_options(address: StoreAddress, url: str) -> dict[str, Any]:
    """Return the options of clients of Sentinels.

    Raises:
        ConfigError: an option is unknown or invalid.
    """
    protocol = address.server_url.partition(":")[0]
    try:
        options: dict[str, Any] = OPTIONS | dict(parse_url(f"{protocol}://?{urlencode(address.sentinel_options)}"))
        options["socket_timeout"] = CONNECT_SECONDS
        options["ssl"] = options.pop("connection_class", None) is SSLConnection
        Sentinel(address.hosts, sentinel_kwargs=options)
    except (TypeError, ValueError, RedisError):
        raise ConfigError(f"store: {unsupported_option_message(url)}") from None
    return options
