"""A Redis Cluster, and a Redis primary with a replica and a Sentinel, on free ports of this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from tests.support.ports import HOST, free_port
from tests.support.redis_server import RedisServer, require_redis
from tests.support.waiting import wait_until

SERVICE = "features"
"""Name of the primary at the Sentinel."""


class RedisCluster:
    """A cluster of primaries without replicas, which share the slots evenly.

    Attributes:
        servers: the servers, in the order of their slots.
        url: address that names all of them.
        client: client of the cluster.
    """

    def __init__(self, folder: Path, *options: str, size: int = 3) -> None:
        self.servers: list[RedisServer] = []
        for number in range(size):
            bus = ["--cluster-port", str(free_port())]
            enabled = ["--cluster-enabled", "yes", "--cluster-node-timeout", "5000"]
            self.servers.append(RedisServer(folder / str(number), *enabled, *bus, *options))
        addresses = [f"{HOST}:{server.port}" for server in self.servers]
        self.url = f"redis+cluster://{','.join(addresses)}"
        command = ["redis-cli", "--cluster", "create", *addresses, "--cluster-replicas", "0", "--cluster-yes"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wait_until(self._is_complete, "the cluster is complete")
        self.client = redis.RedisCluster(host=HOST, port=self.servers[0].port)

    def stop(self) -> None:
        self.client.close()
        for server in self.servers:
            server.client.close()
            server.stop()

    def clear(self) -> None:
        """Remove all keys."""
        for server in self.servers:
            server.client.flushall()

    def move_slot(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Move a slot and its keys."""
        self.begin_move(slot, source, target)
        self.end_move(slot, target)

    def begin_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Move the keys of a slot without telling clients that the slot has moved: they are asked to ask the target."""
        ids = {server.port: server.client.execute_command("CLUSTER MYID").decode() for server in (source, target)}
        target.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source.port])
        source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target.port])
        keys = source.client.execute_command("CLUSTER GETKEYSINSLOT", slot, 1_000)
        if keys:
            source.client.execute_command("MIGRATE", HOST, target.port, "", 0, 5_000, "KEYS", *keys)

    def end_move(self, slot: int, target: RedisServer) -> None:
        """Make the target the owner of a slot."""
        owner = target.client.execute_command("CLUSTER MYID").decode()
        for server in [target, *(server for server in self.servers if server is not target)]:
            server.client.execute_command("CLUSTER SETSLOT", slot, "NODE", owner)

    def _is_complete(self) -> bool:
        states = [server.client.execute_command("CLUSTER INFO") for server in self.servers]
        return all(state["cluster_state"] == "ok" for state in states)


@contextmanager
def redis_cluster(folder: Path, *options: str) -> Iterator[RedisCluster]:
    """Run a cluster; skip the test if redis-server is not installed, or fail it in CI."""
    require_redis()
    cluster = RedisCluster(folder, *options)
    try:
        yield cluster
    finally:
        cluster.stop()


class MonitoredRedis:
    """A primary, its replica, and a Sentinel that makes the replica the primary if the primary is down.

    Attributes:
        primary: the first primary.
        replica: the first replica.
        url: address of the primary at the Sentinel.
    """

    def __init__(self, folder: Path, password: str = "") -> None:
        options = ["--repl-diskless-sync-delay", "0"]
        options += ["--requirepass", password, "--masterauth", password] if password else []
        self.primary = RedisServer(folder / "primary", *options)
        self.replica = RedisServer(folder / "replica", *options, "--replicaof", f"{HOST} {self.primary.port}")
        for server in (self.primary, self.replica):
            server.client = redis.Redis(port=server.port, password=password or None)
        self._sentinel_port = free_port()
        configuration = folder / "sentinel.conf"
        lines = [f"port {self._sentinel_port}", f"bind {HOST}", f"dir {folder}"]
        lines += [f"sentinel monitor {SERVICE} {HOST} {self.primary.port} 1"]
        lines += [f"sentinel down-after-milliseconds {SERVICE} 3000", f"sentinel failover-timeout {SERVICE} 3000"]
        lines += [f"requirepass {password}-sentinel", f"sentinel auth-pass {SERVICE} {password}"] if password else []
        configuration.write_text("\n".join(lines) + "\n")
        command = ["redis-server", str(configuration), "--sentinel"]
        # A Sentinel asks the primary for its replicas at its start, and then every ten seconds.
        wait_until(self._is_synchronized, "the replica is synchronized")
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._sentinel = redis.Redis(port=self._sentinel_port, password=f"{password}-sentinel" if password else None)
        self.url = f"redis+sentinel://{HOST}:{self._sentinel_port}/{SERVICE}/0"
        wait_until(self._has_replica, "the Sentinel knows the replica")

    def primary_port(self) -> int:
        """Return the port of the current primary."""
        return int(self._sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def stop(self) -> None:
        self._sentinel.close()
        self._process.kill()
        self._process.wait()
        for server in (self.primary, self.replica):
            server.client.close()
            server.stop()

    def _is_synchronized(self) -> bool:
        try:
            return self.replica.client.info("replication")["master_link_status"] == "up"
        except redis.ConnectionError:
            return False

    def _has_replica(self) -> bool:
        try:
            return bool(self._sentinel.execute_command("SENTINEL REPLICAS", SERVICE))
        except redis.ConnectionError:
            return False


@contextmanager
def monitored_redis(folder: Path, password: str = "") -> Iterator[MonitoredRedis]:
    """Run a primary, a replica and a Sentinel; skip the test if redis-server is not installed, or fail it in CI."""
    require_redis()
    servers = MonitoredRedis(folder, password)
    try:
        yield servers
    finally:
        servers.stop()
