"""Connection of commands to the Redis feature store of the service."""

from __future__ import annotations

from typing import Any, TypeAlias
from urllib.parse import urlencode

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import SSLConnection, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from ranking.artifacts.store_address import StoreAddress, redact_address, unsupported_option_message
from ranking.errors import OutputError, UsageError, single_line

TIMEOUT_SECONDS = 30.0
"""Timeout of connecting and of each response in seconds."""

OPTIONS: dict[str, Any] = {
    "protocol": 2,
    "socket_timeout": TIMEOUT_SECONDS,
    "socket_connect_timeout": TIMEOUT_SECONDS,
}

StoreClient: TypeAlias = redis.Redis | RedisCluster

STORE_ERRORS = (redis.RedisError, redis.exceptions.RedisClusterException)
"""Errors of a store that cannot be reached or rejects a command."""


def connect(url: str) -> StoreClient:
    """Connect to a store: to its server, to all servers of a cluster, or to the primary that Sentinels name.

    Raises:
        OutputError: the store cannot be reached.
        UsageError: the address has an unsupported option.
    """
    address = StoreAddress.parse(url)
    try:
        match address.kind:
            case "server":
                client: StoreClient = _server_client(url)
            case "sentinel":
                client = _sentinel_client(address)
            case "cluster":
                client = _cluster_client(address)
        client.ping()
    except (TypeError, ValueError):
        raise UsageError(unsupported_option_message(url)) from None
    except STORE_ERRORS as error:
        raise store_error(url, error, "cannot be reached", "check the address, the password and the network") from None
    return client


def store_error(url: str, error: Exception, failure: str, hint: str) -> OutputError:
    """Convert one of ``STORE_ERRORS``.

    Args:
        url: address of the store; the message does not contain its user and password.
        error: the error.
        failure: description of the failure.
        hint: end of the message, unless the user lacks a permission, which nothing but a permission can fix.
    """
    if isinstance(error, redis.exceptions.NoPermissionError):
        failure = "its access control list rejects a command"
        hint = "grant the commands that docs/operations.md lists under 'Users of the store'"
    return OutputError(f"{redact_address(url)}: {failure} ({single_line(error)}); {hint}")


def _server_client(url: str) -> redis.Redis:
    client = redis.Redis.from_url(url, **OPTIONS)
    client.connection_pool.make_connection()  # checks the options
    return client


def _sentinel_client(address: StoreAddress) -> redis.Redis:
    """Return a client of the primary; it asks the Sentinels each time it connects."""
    options = _options(address.server_url)
    protocol = address.server_url.partition(":")[0]
    sentinel_options = _options(f"{protocol}://?{urlencode(address.sentinel_options)}")
    redis.Redis(**options)  # checks the options
    manager = Sentinel(list(address.hosts), sentinel_kwargs=sentinel_options)
    for name in ("host", "port"):
        options.pop(name)
    client: redis.Redis = manager.master_for(address.service, **options)
    return client


def _cluster_client(address: StoreAddress) -> RedisCluster:
    options = _options(address.server_url)
    redis.Redis(**options)  # checks the options
    for name in ("host", "port", "db"):
        options.pop(name, None)
    nodes = [ClusterNode(host, port) for host, port in address.hosts]
    return RedisCluster(startup_nodes=nodes, retry=Retry(NoBackoff(), 0), **options)


def _options(server_url: str) -> dict[str, Any]:
    """Return the options of clients of a server."""
    options: dict[str, Any] = OPTIONS | dict(parse_url(server_url))
    return options | {"ssl": options.pop("connection_class", None) is SSLConnection}
