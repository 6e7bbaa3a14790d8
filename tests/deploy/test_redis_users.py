"""Users of the Redis of deploy/compose.yaml: each can do what its programs do, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import redis
import yaml
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.command import ranker
from tests.support.counted_loop import ROUNDS, CountedLoop
from tests.support.counted_ranker import NOW, draw_events, make_tables
from tests.support.ports import free_port
from tests.support.redis_server import require_redis
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
SERVICES = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
GUIDE = (ROOT / "docs" / "operations.md").read_text()
PASSWORDS = {"service": "s3cret", "loader": "l0ader"}
CLIENTS = {"service": "ranker", "loader": "loader"}
"""Service of the Compose file that connects as each user."""


class ComposeRedis:
    """A redis-server that the command of the Compose file starts with a shell.

    Args:
        folder: folder of the secrets.
        edit: changes the command.

    Attributes:
        process: the server.
        urls: address of the store for each user, as the commands of the Compose file build it.
    """

    def __init__(self, folder: Path, edit: Callable[[str], str] = str) -> None:
        require_redis()
        self._folder, self._port = folder, free_port()
        for user, password in PASSWORDS.items():
            (folder / f"redis-{user}-password").write_text(f"{password}\n")
        assert SERVICES["redis"]["entrypoint"] == SERVICES["ranker"]["entrypoint"] == ["sh", "-euc"]
        script = self._adapt(SERVICES["redis"]["command"][0])
        script = edit(script.replace("--save", f"--port {self._port} --bind 127.0.0.1 --save"))
        self.process = subprocess.Popen(["sh", "-euc", script], cwd=folder, stdout=subprocess.DEVNULL)
        self.urls = {user: self._url(service) for user, service in CLIENTS.items()}

    def client(self, user: str) -> redis.Redis:
        return redis.Redis.from_url(self.urls[user], retry=Retry(NoBackoff(), 0))

    def is_healthy(self) -> bool:
        """Run the health check."""
        assert self.process.poll() is None, "redis-server exited"
        kind, check = SERVICES["redis"]["healthcheck"]["test"]
        assert kind == "CMD-SHELL"
        check = self._adapt(check).replace("redis-cli", f"redis-cli -p {self._port}")
        return subprocess.run(["sh", "-c", check], capture_output=True).returncode == 0

    def _url(self, service: str) -> str:
        lines = self._adapt(SERVICES[service]["command"][0]).splitlines()
        (export,) = [line for line in lines if line.startswith("export ")]
        shell = ["sh", "-euc", f'{export}; printf %s "$RANKER_STORE"']
        return subprocess.run(shell, capture_output=True, text=True, check=True).stdout

    def _adapt(self, script: str) -> str:
        """Replace the escaped dollars of Compose, the secrets and the address."""
        script = script.replace("$$", "$").replace("/run/secrets/", f"{self._folder}/")
        return script.replace("redis:6379", f"127.0.0.1:{self._port}")


@contextmanager
def compose_redis(folder: Path, edit: Callable[[str], str] = str) -> Iterator[ComposeRedis]:
    server = ComposeRedis(folder, edit)
    try:
        wait_until(server.is_healthy, "Redis is healthy")
        yield server
    finally:
        server.process.terminate()
        server.process.wait()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ComposeRedis]:
    with compose_redis(tmp_path) as server:
        yield server


@pytest.fixture
def loop(tmp_path: Path, server: ComposeRedis) -> CountedLoop:
    """A model with counters, whose commands connect as the loader."""
    return CountedLoop(tmp_path / "loop", server.urls["loader"])


def succeed(*argv: object) -> dict[str, Any]:
    """Run ``ranker`` and return its result."""
    code, out, err = ranker(*argv)
    assert code == 0, err
    result: dict[str, Any] = json.loads(out)
    return result


def test_redis_requires_the_passwords_and_hides_them(server: ComposeRedis, tmp_path: Path) -> None:
    port, once = server.client("service").get_connection_kwargs()["port"], Retry(NoBackoff(), 0)
    for password in (None, *PASSWORDS.values()):
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=port, password=password, retry=once).ping()
    for password in PASSWORDS.values():
        assert password not in Path(f"/proc/{server.process.pid}/cmdline").read_text()
    (tmp_path / "redis-service-password").write_text("other\n")
    assert not server.is_healthy()


@pytest.mark.parametrize("user", ["service", "loader"])
def test_no_user_can_empty_the_store_or_reach_other_keys(server: ComposeRedis, user: str) -> None:
    client = server.client(user)
    calls: list[Callable[[], Any]] = [
        client.flushall,
        client.flushdb,
        client.config_get,
        client.acl_list,
        client.shutdown,
        lambda: client.mget("other:feed:item:v1"),
        lambda: client.set("other:feed:item:v1", "{}"),
        lambda: client.eval("return 1", 0),
    ]
    for call in calls:
        with pytest.raises(redis.exceptions.NoPermissionError):
            call()


def test_service_reads_what_the_loader_writes_and_cannot_write(server: ComposeRedis, loop: CountedLoop) -> None:
    tables, start = make_tables(text=True), ROUNDS[0]
    bundle, repository = loop.folder / "bundle", loop.folder / "repository"
    for owner, table in tables.items():
        file = loop.folder / f"{owner}s.parquet"
        pq.write_table(table.table, file)
        to = ["--to", loop.url, "--model", "counted"]
        assert succeed(f"{owner}s", "load", file, "--bundle", bundle, *to)[f"{owner}s"] == len(table.ids)
    obsolete = "ranker:counted:counters:user:1"
    server.client("loader").set(obsolete, "{}")
    assert succeed("counters", "load", repository, "--to", loop.url)["removed"] == 1
    log = loop.folder / "later.parquet"
    pq.write_table(draw_events(100, 8, text=True, end=NOW + 86_400_000_000), log)
    apply = ["counters", "apply", log, "--repository", repository, "--to", loop.url]
    assert (succeed(*apply)["applied"] > 0, succeed(*apply)["repeated"]) == (True, 100)
    loop.url = server.urls["service"]
    loop.serve(start)  # checks that the answers are not degraded
    loop.url = server.urls["loader"]
    loop.follower().step(start + timedelta(days=2))
    with server.client("loader").pipeline() as transaction:
        transaction.watch(obsolete)  # a transaction that an error ends before its commands are sent needs UNWATCH
    assert succeed("forget", "u1", "--repository", repository, "--to", loop.url)["store_keys"] == 2
    assert succeed("counters", "load", repository, "--to", loop.url)["values"] > 0  # reads who was forgotten
    loop.follower().step(start + timedelta(days=2))
    client = server.client("service")
    writes: list[Callable[[], Any]] = [
        lambda: client.set("ranker:counted:item:v1", "{}"),
        lambda: client.delete("ranker:counted:item:v1"),
        lambda: client.expire("ranker:counted:item:v1", 1),
        client.scan,
    ]
    for write in writes:
        with pytest.raises(redis.exceptions.NoPermissionError):
            write()


@pytest.mark.parametrize("command", ["info", "ping", "mset", "scan"])
def test_command_that_is_not_permitted_is_named_with_the_fix(tmp_path: Path, command: str) -> None:
    def forbid(script: str) -> str:
        return re.sub(rf"(user loader.*) \+{command}\b", r"\1", script)

    with compose_redis(tmp_path, forbid) as server:
        loop = CountedLoop(tmp_path / "loop", server.urls["loader"])
        code, _, err = ranker("counters", "load", loop.folder / "repository", "--to", loop.url)
    (line,) = [line for line in err.splitlines() if line.startswith("ranker: ")]
    assert code == 1
    assert "its access control list rejects a command" in line
    assert f"'{command}'" in line
    assert "'Users of the store'" in line
    assert PASSWORDS["loader"] not in err


def test_guide_shows_the_rules_of_the_file() -> None:
    assert "### Users of the store\n" in GUIDE
    rules = re.findall(r"^user .*", SERVICES["redis"]["command"][0].replace("$$", ""), re.MULTILINE)
    shown = re.findall(r"^user .*", GUIDE, re.MULTILINE)
    assert [re.sub(r">\S+", ">", rule) for rule in shown] == [re.sub(r">\S+", ">", rule) for rule in rules]
