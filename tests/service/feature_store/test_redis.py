"""Reads from a Redis server: values, timeouts, rejected commands and lost connections."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.asyncio.connection import AbstractConnection

from ranking.errors import ConfigError
from service.feature_store.key_value_store import KeyValueStoreError
from service.feature_store.pipelined_connection import PipelinedConnection
from service.feature_store.redis import RedisStore
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer, redis_server
from tests.support.slow_proxy import SlowProxy

TIMEOUT_SECONDS = 10.0
"""Time limit of a lookup that is sufficient on a busy machine."""

Operation = Callable[[RedisStore], Coroutine[Any, Any, Any]]


def with_store(url: str, operation: Operation, seconds: float = TIMEOUT_SECONDS) -> Any:
    """Run an operation with a store and close the store."""

    async def run() -> Any:
        store = RedisStore(url, seconds)
        try:
            return await operation(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def read_error(store: RedisStore) -> tuple[str, str]:
    """Return the reason and the message of a failing read."""
    with pytest.raises(KeyValueStoreError) as caught:
        await store.read(["a"])
    return caught.value.reason, str(caught.value)


def test_read_returns_values_in_the_order_of_the_keys(empty_redis: RedisServer) -> None:
    empty_redis.client.mset({"a": "1", "ü": b"\xff\x00", "long": "x" * 300_000})
    empty_redis.client.hset("hash", "field", "1")
    keys = ["ü", "a", "nothing", "hash", "long", "a", ""]
    values = with_store(empty_redis.url, lambda store: store.read(keys))
    assert values == [b"\xff\x00", b"1", None, None, b"x" * 300_000, b"1", None]


def test_concurrent_reads_share_a_connection_and_get_their_own_values(empty_redis: RedisServer) -> None:
    empty_redis.client.mset({str(i): str(i) for i in range(500)})
    before = empty_redis.client.info("stats")["total_connections_received"]

    async def read_all(store: RedisStore) -> list[list[bytes | None]]:
        return await asyncio.gather(*(store.read([str(i), str(i + 1)]) for i in range(499)))

    assert with_store(empty_redis.url, read_all) == [[str(i).encode(), str(i + 1).encode()] for i in range(499)]
    assert empty_redis.client.info("stats")["total_connections_received"] - before < 20


def test_reads_after_timeouts_and_cancellations_get_their_own_values(empty_redis: RedisServer) -> None:
    empty_redis.client.mset({str(i): str(i) for i in range(100)})

    async def read_repeatedly(store: RedisStore) -> None:
        await store.read(["0"])
        proxy.delay = 0.3
        tasks = [asyncio.create_task(store.read([str(i)])) for i in range(50)]
        await asyncio.sleep(0.01)
        for task in tasks[::2]:
            task.cancel()
        for i, result in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
            failed = isinstance(result, (asyncio.CancelledError, KeyValueStoreError))
            assert failed or result == [str(i).encode()]  # it succeeds if the machine is paused meanwhile
        proxy.delay = 0.0
        for i in range(50, 100):
            for _ in range(100):  # late responses may occupy the connection for some time
                try:
                    assert await store.read([str(i)]) == [str(i).encode()]
                    break
                except KeyValueStoreError:
                    continue
            else:
                pytest.fail("the store does not recover")

    with SlowProxy(empty_redis.port).running() as proxy:
        with_store(f"redis://127.0.0.1:{proxy.port}", read_repeatedly, seconds=0.1)


def test_read_from_a_slow_server_times_out(empty_redis: RedisServer) -> None:
    with SlowProxy(empty_redis.port).running() as proxy:
        proxy.delay = 60.0
        error = with_store(f"redis://127.0.0.1:{proxy.port}", read_error, seconds=0.02)
    assert error == ("timeout", "no answer within 20 ms")


def test_read_from_a_stopped_server_is_unreachable_until_it_restarts(empty_redis: RedisServer) -> None:
    async def stop_and_restart(store: RedisStore) -> None:
        empty_redis.client.set("a", "1")
        assert await store.read(["a"]) == [b"1"]
        empty_redis.stop()
        assert (await read_error(store))[0] == "unreachable"
        assert (await read_error(store))[0] == "unreachable"
        empty_redis.start()
        assert await store.read(["a"]) == [None]

    with_store(empty_redis.url, stop_and_restart)


def test_silent_connection_is_replaced(empty_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.feature_store.pipelined_connection.MAX_SILENT_SECONDS", 0.2)

    async def read_through_silence(store: RedisStore) -> None:
        await store.read(["a"])
        proxy.delay = 3600.0
        for _ in range(5):
            assert (await read_error(store))[0] in ("timeout", "unreachable")
        proxy.delay = 0.0
        for _ in range(20):
            try:
                await store.read(["a"])
                return
            except KeyValueStoreError:
                continue
        pytest.fail("the store keeps waiting on the silent connection")

    with SlowProxy(empty_redis.port).running() as proxy:
        with_store(f"redis://127.0.0.1:{proxy.port}", read_through_silence, seconds=0.1)


def test_rejected_commands_are_errors_with_the_reason_of_redis() -> None:
    with redis_server("--requirepass", "right", "--maxclients", "50") as server:
        url = f"redis://:{{}}@127.0.0.1:{server.port}"
        assert with_store(server.url, read_error) == ("error", "Authentication required.")
        reason, message = with_store(url.format("wrong"), read_error)
        assert reason == "error"
        assert "wrong" not in message.replace("WRONGPASS", "")
        assert with_store(url.format("right"), lambda store: store.read(["a"])) == [None]
        assert with_store(url.format("right") + "/99", read_error) == ("error", "DB index is out of range")


def test_server_that_does_not_speak_the_redis_protocol_is_an_error() -> None:
    async def read_from_http_server() -> str:
        async def respond(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        store = RedisStore(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", TIMEOUT_SECONDS)
        try:
            return (await read_error(store))[0]
        finally:
            await store.close()
            server.close()

    assert asyncio.run(read_from_http_server()) == "error"


def test_tls_verifies_the_certificate_of_the_server(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    write_certificate(certificate, key)
    tls = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-auth-clients", "no"]
    port = free_port()
    with redis_server("--tls-port", str(port), *tls) as server:
        server.client.set("a", "1")
        url = f"rediss://127.0.0.1:{port}"
        assert with_store(f"{url}?ssl_ca_certs={certificate}", lambda store: store.read(["a"])) == [b"1"]
        assert with_store(url, read_error)[0] == "unreachable"  # not signed by a known authority


def write_certificate(certificate: Path, key: Path) -> None:
    """Write a self-signed certificate of 127.0.0.1 and its key."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    today = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    pkcs8 = serialization.PrivateFormat.PKCS8
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, pkcs8, serialization.NoEncryption()))


@pytest.mark.parametrize("option", ["nonsense=1", "socket_timeout=soon"])
def test_address_with_an_invalid_option_is_rejected_without_its_password(option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisStore(f"redis://:secret@127.0.0.1:1/0?{option}", 1.0)
    name = option.partition("=")[0]
    assert str(caught.value) == (
        f"store: redis://127.0.0.1:1/0: redis-py does not know an option of the address ({name}), "
        "or its value is invalid"
    )


@pytest.mark.parametrize("failure", [AttributeError("no writer"), RuntimeError("closed"), asyncio.CancelledError()])
def test_unexpected_failure_of_the_connection_is_unreachable(
    empty_redis: RedisServer, failure: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> Any:
        raise failure

    async def fail_and_recover(store: RedisStore) -> tuple[str, str]:
        await store.read(["a"])
        with monkeypatch.context() as patch:
            patch.setattr(PipelinedConnection, "execute", fail)
            error = await read_error(store)
        assert await store.read(["a"]) == [None]
        return error

    assert with_store(empty_redis.url, fail_and_recover)[0] == "unreachable"


def test_write_to_a_lost_connection_is_an_ordinary_failure(
    empty_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    async def fail_and_recover(store: RedisStore) -> tuple[str, str]:
        await store.read(["a"])
        with monkeypatch.context() as patch:
            patch.setattr(AbstractConnection, "send_packed_command", fail)
            error = await read_error(store)
        await store.close()
        assert await store.read(["a"]) == [None]
        return error

    reason, message = with_store(empty_redis.url, fail_and_recover)
    assert (reason, message.endswith("the handler is closed")) == ("unreachable", True)
    assert not caplog.records


def test_cancelled_read_raises_cancelled_error(empty_redis: RedisServer) -> None:
    async def cancel(store: RedisStore) -> None:
        reading = asyncio.create_task(store.read(["a"]))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    with_store(empty_redis.url, cancel)
