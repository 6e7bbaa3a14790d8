"""Redis Cluster as a key-value store: one batch of GETs per server and lookup."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import hiredis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import AbstractConnection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from ranking.artifacts.store_address import StoreAddress, unsupported_option_message
from ranking.errors import ConfigError
from service.feature_store.pipelined_connection import CONNECT_SECONDS, ReconnectingConnection
from service.feature_store.redis import BaseRedisStore, connection_options

MAX_REDIRECTIONS = 3
"""Maximum number of times that a lookup follows keys that have moved to another server."""
Server = tuple[str, int]
"""Host and port."""
ASKING = hiredis.pack_command(("ASKING",))


class ClusterStore(BaseRedisStore):
    """Reads each key from the primary that holds its slot, over one connection per server.

    redis-py discovers which server holds which slot. The reads do not use its pipeline, which takes several times as
    much processor time for each key (docs/benchmarks.md).

    Args:
        url: address of the form ``redis+cluster://`` or ``rediss+cluster://``.
        seconds: time limit of a lookup.

    Raises:
        ConfigError: the address has an unknown or invalid option.
    """

    clustered = True

    def __init__(self, url: str, seconds: float) -> None:
        super().__init__(url, seconds)
        address = StoreAddress.parse(url)
        self._connection_class, options = connection_options(address.server_url, url)
        self._options = {name: value for name, value in options.items() if name not in ("host", "port", "db")}
        self._hosts = address.hosts
        self._slots: dict[int, Server] = {}
        self._servers: dict[Server, ReconnectingConnection] = {}
        self._discovery: asyncio.Task[None] | None = None
        try:
            self._topology_client()
        except (TypeError, ValueError, RedisError):
            raise ConfigError(f"store: {unsupported_option_message(url)}") from None

    @property
    def _connections(self) -> Iterable[ReconnectingConnection]:
        return self._servers.values()

    async def close(self) -> None:
        """Close the connections."""
        if self._discovery is not None:
            self._discovery.cancel()
        await super().close()

    async def _read(self, keys: Sequence[str]) -> list[bytes | None]:
        if not self._slots:
            await self._discover()
        values: list[Any] = [None] * len(keys)
        missing: Iterable[int] = range(len(keys))
        encoded = [key.encode() for key in keys]
        for _ in range(MAX_REDIRECTIONS + 1):
            positions = self._by_server(encoded, missing)
            try:
                await asyncio.gather(*(self._get(server, encoded, at, values) for server, at in positions.items()))
            except (RedisConnectionError, OSError):
                self._start_discovery()  # for later lookups: another server may have taken over
                raise
            moved = [i for i in missing if isinstance(values[i], MovedError)]
            asked = [i for i in missing if isinstance(values[i], AskError)]
            if moved:
                await self._discover()
            await asyncio.gather(*(self._ask(encoded[i], i, values) for i in asked))
            missing = [i for i in (*moved, *asked) if isinstance(values[i], RedisError)]
            if not missing:
                break
        for value in values:
            if isinstance(value, RedisError):
                raise value
        return values

    def _by_server(self, keys: Sequence[bytes], indices: Iterable[int]) -> dict[Server, list[int]]:
        """Group the indices of keys by the server that holds them."""
        positions: dict[Server, list[int]] = {}
        for i in indices:
            server = self._slots.get(key_slot(keys[i]))
            if server is None:
                self._start_discovery()
                raise RedisConnectionError("no server of the cluster holds the slot of a key")
            positions.setdefault(server, []).append(i)
        return positions

    async def _get(self, server: Server, keys: Sequence[bytes], indices: Sequence[int], values: list[Any]) -> None:
        """Read the keys at ``indices`` from one server into ``values``; a rejected read becomes a ``RedisError``."""
        commands = b"".join([_get_command(keys[i]) for i in indices])
        connection = await self._server(server).get()
        for i, value in zip(indices, await connection.execute_all(commands, len(indices)), strict=True):
            values[i] = value

    async def _ask(self, key: bytes, index: int, values: list[Any]) -> None:
        """Read a key whose slot is being moved from the server that the ``AskError`` in ``values`` names."""
        error: AskError = values[index]
        connection = await self._server((error.host, error.port)).get()
        _, values[index] = await connection.execute_all(ASKING + _get_command(key), 2)

    def _server(self, server: Server) -> ReconnectingConnection:
        connection = self._servers.get(server)
        if connection is None:

            async def create() -> AbstractConnection:
                return self._connection_class(**self._options, host=server[0], port=server[1])

            connection = self._servers[server] = ReconnectingConnection(create)
        return connection

    async def _discover(self) -> None:
        """Read anew which server holds which slot. Concurrent lookups share one attempt, and it outlives them."""
        self._start_discovery()
        assert self._discovery is not None
        await asyncio.shield(self._discovery)

    def _start_discovery(self) -> None:
        if self._discovery is None:
            self._discovery = asyncio.create_task(self._run_discovery())
            self._discovery.add_done_callback(self._finish_discovery)

    async def _run_discovery(self) -> None:
        manager = self._topology_client().nodes_manager
        try:
            await manager.initialize()
            self._slots = {slot: (nodes[0].host, int(nodes[0].port)) for slot, nodes in manager.slots_cache.items()}
        finally:
            await manager.aclose()
            await manager.aclose("startup_nodes")
        for server in self._servers.keys() - set(self._slots.values()):
            await self._servers.pop(server).close()

    def _finish_discovery(self, task: asyncio.Task[None]) -> None:
        self._discovery = None
        if not task.cancelled():
            task.exception()  # mark as retrieved: all lookups may have timed out already

    def _topology_client(self) -> RedisCluster:
        """Return a client that asks the servers of the address and those that are known for the topology."""
        options = {name: value for name, value in self._options.items() if name not in ("retry", "driver_info")}
        known = dict.fromkeys([*self._hosts, *self._servers])
        return RedisCluster(
            startup_nodes=[ClusterNode(host, port) for host, port in known],
            retry=Retry(NoBackoff(), 0),
            ssl=self._connection_class is SSLConnection,
            **options | {"socket_timeout": CONNECT_SECONDS},
        )


def _get_command(key: bytes) -> bytes:
    packed: bytes = hiredis.pack_command((b"GET", key))  # type: ignore[arg-type]  # the stub only allows 1-tuples
    return packed
