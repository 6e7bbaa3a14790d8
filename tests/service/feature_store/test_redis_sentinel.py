"""Reads from the primary that a Redis Sentinel names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from ranking.errors import ConfigError
from service.feature_store.key_value_store import KeyValueStoreError
from service.feature_store.redis_sentinel import SentinelStore
from tests.support.ports import HOST, free_port
from tests.support.redis_cluster import SERVICE, monitored_redis

TIMEOUT_SECONDS = 10.0


def with_store(url: str, operation: Callable[[SentinelStore], Coroutine[Any, Any, Any]]) -> Any:
    """Run an operation with a store and close the store."""

    async def run() -> Any:
        store = SentinelStore(url, TIMEOUT_SECONDS)
        try:
            return await operation(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def read_error(store: SentinelStore) -> tuple[str, str]:
    """Return the reason and the message of a failing read."""
    with pytest.raises(KeyValueStoreError) as caught:
        await store.read(["a"])
    return caught.value.reason, str(caught.value)


@pytest.mark.system
def test_read_follows_the_primary_after_a_failover(tmp_path: Path) -> None:
    """The store must find the replica that Sentinel promotes, without a restart of the service."""
    with monitored_redis(tmp_path) as servers:
        servers.primary.client.mset({"a": "1", "b": "2"})
        servers.primary.client.execute_command("WAIT", 1, 10_000)

        async def fail_over(store: SentinelStore) -> None:
            assert await store.read(["a", "nothing", "b"]) == [b"1", None, b"2"]
            await asyncio.to_thread(servers.primary.stop)
            for _ in range(600):
                try:
                    assert await store.read(["a", "b"]) == [b"1", b"2"]
                    break
                except KeyValueStoreError:
                    await asyncio.sleep(0.1)
            else:
                pytest.fail("the store did not find the new primary")
            assert await asyncio.to_thread(servers.primary_port) == servers.replica.port
            servers.replica.client.set("a", "3")
            assert await store.read(["a"]) == [b"3"]

        with_store(f"redis+sentinel://{HOST}:{free_port()},{servers.url.partition('//')[2]}", fail_over)


def test_passwords_of_servers_and_sentinels_differ(tmp_path: Path) -> None:
    with monitored_redis(tmp_path, "secret") as servers:
        servers.primary.client.set("a", "1")
        url = servers.url.replace("//", "//:{}@") + "?sentinel_password={}"
        assert with_store(url.format("secret", "secret-sentinel"), lambda store: store.read(["a"])) == [b"1"]
        for passwords in (("wrong", "secret-sentinel"), ("secret", "wrong")):
            reason, message = with_store(url.format(*passwords), read_error)
            assert reason in ("error", "unreachable")
            assert "secret" not in message
            assert "wrong" not in message


def test_unknown_service_and_unreachable_sentinels_are_named(tmp_path: Path) -> None:
    with monitored_redis(tmp_path) as servers:
        reason, message = with_store(servers.url.replace(f"/{SERVICE}/", "/other/"), read_error)
        assert (reason, "'other'" in message) == ("unreachable", True)
    reason, message = with_store(f"redis+sentinel://{HOST}:{free_port()}/{SERVICE}", read_error)
    assert (reason, f"'{SERVICE}'" in message) == ("unreachable", True)


@pytest.mark.parametrize("option", ["nonsense=1", "sentinel_nonsense=1", "sentinel_socket_timeout=soon"])
def test_address_with_an_invalid_option_is_rejected_without_its_password(option: str) -> None:
    with pytest.raises(ConfigError, match="redis-py does not know an option of the address") as caught:
        SentinelStore(f"redis+sentinel://:secret@127.0.0.1:1/{SERVICE}?{option}", 1.0)
    assert "secret" not in str(caught.value)
