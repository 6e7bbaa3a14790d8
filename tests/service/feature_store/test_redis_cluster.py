"""Reads from a Redis Cluster of three servers: values, moved slots, and servers that are down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from ranking.errors import ConfigError
from service.feature_store.key_value_store import KeyValueStoreError
from service.feature_store.redis_cluster import ClusterStore
from tests.support.ports import HOST, free_port
from tests.support.redis_cluster import RedisCluster, redis_cluster
from tests.support.redis_server import RedisServer

TIMEOUT_SECONDS = 10.0
KEYS = [f"key:{number}" for number in range(600)]

Operation = Callable[[ClusterStore], Coroutine[Any, Any, Any]]


def with_store(url: str, operation: Operation, seconds: float = TIMEOUT_SECONDS) -> Any:
    """Run an operation with a store and close the store."""

    async def run() -> Any:
        store = ClusterStore(url, seconds)
        try:
            return await operation(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def read_error(store: ClusterStore) -> tuple[str, str]:
    """Return the reason and the message of a failing read."""
    with pytest.raises(KeyValueStoreError) as caught:
        await store.read(KEYS)
    return caught.value.reason, str(caught.value)


@pytest.fixture
def values(empty_cluster: RedisCluster) -> list[bytes]:
    """Values of ``KEYS``, which are in the cluster."""
    values = [f"value {key}".encode() for key in KEYS]
    empty_cluster.client.mset_nonatomic(dict(zip(KEYS, values, strict=True)))
    return values


def owner(cluster: RedisCluster, key: str) -> RedisServer:
    node = cluster.client.get_node_from_key(key)
    return next(server for server in cluster.servers if server.port == node.port)


def test_read_returns_values_of_all_servers_in_the_order_of_the_keys(
    empty_cluster: RedisCluster, values: list[bytes]
) -> None:
    assert all(server.client.dbsize() > 100 for server in empty_cluster.servers)
    for url in (empty_cluster.url, f"redis+cluster://{HOST}:{empty_cluster.servers[1].port}"):
        assert with_store(url, lambda store: store.read([*KEYS, "nothing", KEYS[0]])) == [*values, None, values[0]]


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=30))
def test_any_keys_are_read_as_the_client_of_redis_reads_them(empty_cluster: RedisCluster, keys: list[str]) -> None:
    for key in keys[::2]:
        empty_cluster.client.set(key, key.encode() + b"!")
    expected = [empty_cluster.client.get(key) for key in keys]
    assert with_store(empty_cluster.url, lambda store: store.read(keys)) == expected


def test_concurrent_reads_get_their_own_values(empty_cluster: RedisCluster, values: list[bytes]) -> None:
    async def read_all(store: ClusterStore) -> None:
        parts = [slice(start, start + 7) for start in range(0, 560, 7)]
        results = await asyncio.gather(*(store.read(KEYS[part]) for part in parts))
        assert results == [values[part] for part in parts]

    with_store(empty_cluster.url, read_all)


def test_keys_of_a_slot_that_moves_are_found_before_during_and_after(
    empty_cluster: RedisCluster, values: list[bytes]
) -> None:
    slot = key_slot(KEYS[0].encode())
    source = owner(empty_cluster, KEYS[0])
    target = next(server for server in empty_cluster.servers if server is not source)

    async def read_while_moving(store: ClusterStore) -> None:
        assert await store.read(KEYS) == values
        await asyncio.to_thread(empty_cluster.begin_move, slot, source, target)
        assert await store.read(KEYS) == values
        await asyncio.to_thread(empty_cluster.end_move, slot, target)
        for _ in range(3):
            assert await store.read(KEYS) == values

    try:
        with_store(empty_cluster.url, read_while_moving)
    finally:
        empty_cluster.move_slot(slot, target, source)


@pytest.mark.system
def test_lookup_that_needs_a_server_that_is_down_fails_until_it_is_back(tmp_path: Path) -> None:
    with redis_cluster(tmp_path, "--cluster-require-full-coverage", "no") as cluster:
        cluster.client.mset_nonatomic(dict.fromkeys(KEYS, b"1"))
        stopped = owner(cluster, KEYS[0])
        others = [key for key in KEYS if owner(cluster, key) is not stopped]

        async def stop_and_restart(store: ClusterStore) -> None:
            assert await store.read(KEYS) == [b"1"] * len(KEYS)
            await asyncio.to_thread(stopped.stop)
            assert (await read_error(store))[0] == "unreachable"
            assert await store.read(others) == [b"1"] * len(others)
            await asyncio.to_thread(stopped.start)
            for _ in range(100):
                try:
                    assert await store.read(KEYS[:1]) == [None]
                    break
                except KeyValueStoreError:
                    await asyncio.sleep(0.1)
            else:
                pytest.fail("the store did not recover")
            assert (await store.read(others)) == [b"1"] * len(others)

        with_store(cluster.url, stop_and_restart)


def test_read_in_time_continues_to_discover_the_cluster_after_a_timeout(
    empty_cluster: RedisCluster, values: list[bytes]
) -> None:
    async def read_at_last(store: ClusterStore) -> None:
        for _ in range(1_000):
            try:
                assert await store.read(KEYS[:5]) == values[:5]
                return
            except KeyValueStoreError:
                await asyncio.sleep(0.01)
        pytest.fail("the store never answered")

    with_store(empty_cluster.url, read_at_last, seconds=0.001)


def test_cluster_with_a_password(tmp_path: Path) -> None:
    with redis_cluster(tmp_path) as cluster:
        cluster.client.set(KEYS[0], "1")
        for server in cluster.servers:
            server.client.config_set("requirepass", "right")
        url = cluster.url.replace("//", "//:{}@")
        assert with_store(url.format("right"), lambda store: store.read(KEYS[:2])) == [b"1", None]
        reason, message = with_store(url.format("wr%40ng"), read_error)
        assert reason in ("error", "unreachable")
        assert "wr@ng" not in message


def test_unreachable_cluster_and_single_server_are_errors(empty_redis: RedisServer) -> None:
    assert with_store(f"redis+cluster://{HOST}:{free_port()}", read_error)[0] == "unreachable"
    reason, message = with_store(f"redis+cluster://{HOST}:{empty_redis.port}", read_error)
    assert reason == "unreachable"
    assert "Cluster mode is not enabled" in message


@pytest.mark.parametrize("option", ["nonsense=1", "socket_timeout=soon"])
def test_address_with_an_invalid_option_is_rejected_without_its_password(option: str) -> None:
    with pytest.raises(ConfigError, match="redis-py does not know an option of the address") as caught:
        ClusterStore(f"redis+cluster://:secret@127.0.0.1:1/?{option}", 1.0)
    assert "secret" not in str(caught.value)
