"""A real Redis, read within a time: its values, its refusals, its absence."""

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

from ranking.errors import ConfigError
from service.feature_store.key_value_store import KeyValueStoreError
from service.feature_store.redis import RedisStore
from service.feature_store.redis_connection import PipelinedConnection
from tests.support.redis_server import RedisServer, redis_server
from tests.support.slow_proxy import SlowProxy

ENOUGH = 10.0
"""Seconds that a busy machine may take."""

Does = Callable[[RedisStore], Coroutine[Any, Any, Any]]


def using(url: str, does: Does, seconds: float = ENOUGH) -> Any:
    async def run() -> Any:
        store = RedisStore(url, seconds)
        try:
            return await does(store)
        finally:
            await store.close()

    return asyncio.run(run())


async def reason(store: RedisStore) -> tuple[str, str]:
    with pytest.raises(KeyValueStoreError) as caught:
        await store.read(["a"])
    return caught.value.reason, str(caught.value)


@pytest.mark.parts
class TestValues:
    def test_are_those_of_the_keys_in_their_order(self, empty: RedisServer) -> None:
        empty.client.mset({"a": "1", "ü": b"\xff\x00", "long": "x" * 300_000})
        empty.client.hset("hash", "field", "1")
        keys = ["ü", "a", "nothing", "hash", "long", "a", ""]
        found = using(empty.url, lambda store: store.read(keys))
        assert found == [b"\xff\x00", b"1", None, None, b"x" * 300_000, b"1", None]

    def test_of_many_reads_at_once_go_to_who_asked(self, empty: RedisServer) -> None:
        empty.client.mset({str(i): str(i) for i in range(500)})

        async def read_all(store: RedisStore) -> list[list[bytes | None]]:
            return await asyncio.gather(*(store.read([str(i), str(i + 1)]) for i in range(499)))

        assert using(empty.url, read_all) == [[str(i).encode(), str(i + 1).encode()] for i in range(499)]
        assert empty.client.info("stats")["total_connections_received"] < 50

    def test_are_ones_own_after_others_came_too_late_or_were_not_awaited(self, empty: RedisServer) -> None:
        empty.client.mset({str(i): str(i) for i in range(100)})

        async def read_some(store: RedisStore) -> None:
            await store.read(["0"])
            proxy.delay = 0.3
            given_up = [asyncio.create_task(store.read([str(i)])) for i in range(50)]
            await asyncio.sleep(0.01)
            for task in given_up[::2]:
                task.cancel()
            await asyncio.gather(*given_up, return_exceptions=True)
            assert all(task.cancelled() or isinstance(task.exception(), KeyValueStoreError) for task in given_up)
            proxy.delay = 0.0
            for i in range(50, 100):
                for _ in range(100):  # as long as what is late keeps the connection
                    try:
                        assert await store.read([str(i)]) == [str(i).encode()]
                        break
                    except KeyValueStoreError:
                        continue
                else:
                    pytest.fail("it does not recover")

        with SlowProxy(empty.port).running() as proxy:
            using(f"redis://127.0.0.1:{proxy.port}", read_some, seconds=0.1)


@pytest.mark.parts
class TestWithoutAnAnswer:
    def test_a_slow_one_is_too_late(self, empty: RedisServer) -> None:
        with SlowProxy(empty.port).running() as proxy:
            proxy.delay = 60.0
            found = using(f"redis://127.0.0.1:{proxy.port}", reason, seconds=0.02)
        assert found == ("timeout", "no answer within 20 ms")

    def test_one_that_stopped_is_unreachable_until_it_is_back(self, empty: RedisServer) -> None:
        async def read(store: RedisStore) -> None:
            empty.client.set("a", "1")
            assert await store.read(["a"]) == [b"1"]
            empty.stop()
            assert (await reason(store))[0] == "unreachable"
            assert (await reason(store))[0] == "unreachable"
            empty.start()
            assert await store.read(["a"]) == [None]

        using(empty.url, read)

    def test_a_connection_that_went_silent_is_given_up(
        self, empty: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("service.feature_store.redis.HANGS_SECONDS", 0.2)

        async def read(store: RedisStore) -> None:
            await store.read(["a"])
            proxy.delay = 3600.0
            for _ in range(5):
                assert (await reason(store))[0] in ("timeout", "unreachable")
            proxy.delay = 0.0
            for _ in range(20):
                try:
                    await store.read(["a"])
                    return
                except KeyValueStoreError:
                    continue
            pytest.fail("it waits for what will never come")

        with SlowProxy(empty.port).running() as proxy:
            using(f"redis://127.0.0.1:{proxy.port}", read, seconds=0.1)

    def test_one_that_refuses_says_why(self) -> None:
        with redis_server("--requirepass", "right", "--maxclients", "50") as server:
            url = f"redis://:{{}}@127.0.0.1:{server.port}"
            assert using(server.url, reason) == ("error", "Authentication required.")
            refused = using(url.format("wrong"), reason)
            assert refused[0] == "error"
            assert "wrong" not in refused[1].replace("WRONGPASS", "")
            assert using(url.format("right"), lambda store: store.read(["a"])) == [None]
            assert using(url.format("right") + "/99", reason) == ("error", "DB index is out of range")

    def test_what_is_no_redis_is_no_store(self) -> None:
        async def read(store: RedisStore) -> str:
            return (await reason(store))[0]

        async def run() -> str:
            async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

            server = await asyncio.start_server(speak, "127.0.0.1", 0)
            store = RedisStore(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}", ENOUGH)
            try:
                return await read(store)
            finally:
                await store.close()
                server.close()

        assert asyncio.run(run()) == "error"


@pytest.mark.parts
def test_tls(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    write_certificate(certificate, key)
    tls = ["--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--tls-auth-clients", "no"]
    with redis_server() as free:
        port = free.port
    with redis_server("--tls-port", str(port), *tls) as server:
        server.client.set("a", "1")
        url = f"rediss://127.0.0.1:{port}"
        assert using(f"{url}?ssl_ca_certs={certificate}", lambda store: store.read(["a"])) == [b"1"]
        assert using(url, reason)[0] == "unreachable"  # nobody vouches for it


def write_certificate(certificate: Path, key: Path) -> None:
    """Of 127.0.0.1, signed by itself."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    today = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


@pytest.mark.parametrize("option", ["nonsense=1", "socket_timeout=soon"])
def test_an_option_that_means_nothing_is_told_without_the_password(option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisStore(f"redis://:secret@127.0.0.1:1/0?{option}", 1.0)
    assert str(caught.value) == (
        f"store: redis://127.0.0.1:1/0: redis-py does not know an option of the address ({option.partition('=')[0]}), "
        "or its value is invalid"
    )


@pytest.mark.parts
class TestAConnectionThatFailsInAnUnforeseenWay:
    @pytest.mark.parametrize("failure", [AttributeError("no writer"), RuntimeError("closed"), asyncio.CancelledError()])
    def test_is_a_store_that_cannot_be_reached(
        self, empty: RedisServer, failure: BaseException, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def fail(*_: Any) -> Any:
            raise failure

        async def twice(store: RedisStore) -> tuple[str, str]:
            await store.read(["a"])
            with monkeypatch.context() as broken:
                broken.setattr(PipelinedConnection, "ask", fail)
                found = await reason(store)
            assert await store.read(["a"]) == [None]
            return found

        assert using(empty.url, twice)[0] == "unreachable"

    def test_who_gives_up_is_no_failure_of_it(self, empty: RedisServer) -> None:
        async def give_up(store: RedisStore) -> None:
            reading = asyncio.create_task(store.read(["a"]))
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

        using(empty.url, give_up)
