"""A service under load gives no wrong response during faults of its repository, releases, disk, Redis and workers."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from pipelines.jobs.publish import publish
from ranking.artifacts import repository
from ranking.artifacts.atomic_files import files_in
from tests.service.faults.clients import CheckingClients
from tests.support.hand_ranker import ITEMS
from tests.support.http_client import NO_RESPONSE, send_request
from tests.support.processes import ServiceProcess, running_service
from tests.support.redis_server import RedisServer
from tests.support.slow_proxy import SlowProxy
from tests.support.waiting import wait_until

BODY = {"user": {"id": "u1"}, "context": {"tab": "home", "hour": 9}, "items": {"id": list(range(ITEMS))}}
RESPONSES = 12
"""Number of responses to wait for while a fault lasts, and after it."""
POLL_SECONDS = 0.1

Fault = Callable[[], AbstractContextManager[None]]


@contextmanager
def truncated(file: Path, size: int) -> Iterator[None]:
    """Truncate a file in place, as ``cp`` and ``rsync --inplace`` do."""
    content = file.read_bytes()
    os.truncate(file, size)
    yield
    file.write_bytes(content)


@contextmanager
def overwritten(file: Path) -> Iterator[None]:
    content = file.read_bytes()
    with file.open("r+b") as stream:
        stream.write(bytes(len(content)))
    yield
    file.write_bytes(content)


@contextmanager
def replaced(path: Path, create: Callable[[Path], object]) -> Iterator[None]:
    """Replace a file or folder by something else."""
    original = path.rename(path.with_name(f"{path.name}.original"))
    create(path)
    yield
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    original.rename(path)


def nothing(_: Path) -> None:
    """Leave the path free."""


def write(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


@dataclass(frozen=True)
class Stack:
    """A service with its repository, versions 1 and 2 of "feed" with equal scores, and its Redis behind a proxy."""

    service: ServiceProcess
    path: Path
    redis: RedisServer
    proxy: SlowProxy

    def faults(self, step: int) -> Iterator[tuple[str, Fault]]:
        """Name and context manager of every ``step``-th fault and of the first one of each kind.

        A fault lasts for the duration of its context.
        """
        parts = self._served_files, self._repository, self._releases, self._redis, self._workers
        for part in parts:
            kinds = set[str]()
            for number, (subject, kind, fault) in enumerate(part()):
                if number % step == 0 or kind not in kinds:
                    yield f"{subject} {kind}", fault
                kinds.add(kind)

    def _served_files(self) -> Iterator[tuple[str, str, Fault]]:
        folder = self.path / "feed" / "2"
        for file in files_in(folder):
            name = str(file.relative_to(folder))
            yield name, "is truncated to nothing", partial(truncated, file, 0)
            yield name, "is truncated to half", partial(truncated, file, file.stat().st_size // 2)
            yield name, "is overwritten", partial(overwritten, file)
            yield name, "is a pipe", partial(replaced, file, os.mkfifo)
            yield name, "is removed", partial(replaced, file, nothing)

    def _repository(self) -> Iterator[tuple[str, str, Fault]]:
        for path in (self.path, self.path / "feed", self.path / "feed" / "2"):
            yield path.name, "is removed", partial(replaced, path, nothing)
            yield path.name, "is a file", partial(replaced, path, Path.touch)
            yield path.name, "is an empty folder", partial(replaced, path, Path.mkdir)
            yield path.name, "leads elsewhere", partial(replaced, path, lambda p: p.symlink_to("/usr"))

    def _releases(self) -> Iterator[tuple[str, str, Fault]]:
        for name in ("feed/current.json", "feed/fallbacks.json", "repository.json"):
            file = self.path / name
            for content in (b"", b"{", b"[]", b"\xff", b'{"version": 9}', b'{"version": 1e400}', b" " * 2**21):
                yield name, f"is {content[:20]!r}", partial(replaced, file, write(content))
            yield name, "is removed", partial(replaced, file, nothing)
            yield name, "is a pipe", partial(replaced, file, os.mkfifo)
            yield name, "is a folder", partial(replaced, file, Path.mkdir)
            for kind, target in (("is endless", "/dev/zero"), ("leads to itself", file.name)):
                yield name, kind, partial(replaced, file, lambda path, t=target: path.symlink_to(t))
        yield "a version", "is released damaged", self._damaged_release
        yield "versions", "are released quickly", self._quick_releases
        yield "publishing", "runs out of space", self._failing_publication

    @contextmanager
    def _damaged_release(self) -> Iterator[None]:
        version = shutil.copytree(self.path / "feed" / "2", self.path / "feed" / "3")
        (version / "weights.safetensors").write_bytes(b"x")
        with replaced(self.path / "feed" / "current.json", write(b'{"version": 3}')):
            yield
        shutil.rmtree(version)

    @contextmanager
    def _quick_releases(self) -> Iterator[None]:
        for version in (1, 2) * 5:
            release = repository.read_release(self.path, "feed").promoted(version)
            repository.write_release(self.path, "feed", release)
            send_request(f"{self.service.url}/v2/repository/models/feed/load", {})
        yield

    @contextmanager
    def _failing_publication(self) -> Iterator[None]:
        command = [sys.executable, "-m", "pipelines.cli", "publish", str(self.path / "feed" / "1"), str(self.path)]
        result = subprocess.run(
            [*command, "--name", "feed"],
            check=False,
            capture_output=True,
            text=True,
            preexec_fn=lambda: (
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
                resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)),
            )[0],
        )
        assert result.returncode == 1, result.stderr
        assert "cannot be written" in result.stderr
        yield

    def _redis(self) -> Iterator[tuple[str, str, Fault]]:
        for name, command, undo in (
            ("is paused", ["CLIENT", "PAUSE", "5000"], ["CLIENT", "UNPAUSE"]),
            ("requires a password", ["CONFIG", "SET", "requirepass", "x"], ["CONFIG", "SET", "requirepass", ""]),
            ("is out of memory", ["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]),
            ("closes connections", ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"], ["PING"]),
            ("holds text", ["SET", "ranker:feed:item:1", "x"], ["FLUSHALL"]),
            ("holds a list", ["LPUSH", "ranker:feed:item:1", "x"], ["FLUSHALL"]),
            ("holds a wrong type", ["SET", "ranker:feed:item:1", '{"price": "x"}'], ["FLUSHALL"]),
            ("holds an unknown column", ["SET", "ranker:feed:user:u1", '{"height": 3}'], ["FLUSHALL"]),
            ("holds nested brackets", ["SET", "ranker:feed:user:u1", "[" * 100_000], ["FLUSHALL"]),
        ):
            yield "Redis", name, partial(self._redis_state, command, undo)
        yield "Redis", "is killed", self._redis_killed
        yield "Redis", "is slow", self._redis_slow

    @contextmanager
    def _redis_state(self, command: list[str], undo: list[str]) -> Iterator[None]:
        self.redis.client.execute_command(*command)
        if "requirepass" in command:  # Only new connections need the password.
            self.redis.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        yield
        self.redis.client.execute_command(*undo)

    @contextmanager
    def _redis_killed(self) -> Iterator[None]:
        self.redis.stop()
        yield
        self.redis.start()

    @contextmanager
    def _redis_slow(self) -> Iterator[None]:
        self.proxy.delay = 1.0
        yield
        self.proxy.delay = 0.0

    def _workers(self) -> Iterator[tuple[str, str, Fault]]:
        weights = self.path / "feed" / "2" / "weights.safetensors"
        yield "a worker", "is killed", self._killed_worker
        yield "a worker", "is replaced while the released version is damaged", partial(self._killed_worker, weights)

    @contextmanager
    def _killed_worker(self, damaged: Path | None = None) -> Iterator[None]:
        serving = "serving feed version"
        pids, starts = self.service.worker_pids(), self.service.output().count(serving)
        with truncated(damaged, 1) if damaged else nullcontext():
            os.kill(min(pids), signal.SIGKILL)
            wait_until(lambda: len(self.service.worker_pids() - {min(pids)}) == len(pids), self.service.output)
            yield
            # The next fault may end the other worker, so that this one must serve.
            wait_until(lambda: self.service.output().count(serving) > starts, self.service.output)


@pytest.mark.parametrize(
    "step",
    [pytest.param(23, marks=pytest.mark.system), pytest.param(1, marks=pytest.mark.nightly)],
)
def test_service_gives_no_wrong_response_during_faults(
    empty_redis: RedisServer, repository_with_tables: Path, tmp_path: Path, step: int
) -> None:
    """A service under load, on a broken repository, store or process, answers as before or from the bundle."""
    path = shutil.copytree(repository_with_tables, tmp_path / "repository")
    publish(path / "feed" / "1", path, "feed")
    with (
        SlowProxy(empty_redis.port).running() as proxy,
        running_service(
            path,
            store=f"redis://127.0.0.1:{proxy.port}",
            store_timeout_ms=100,
            poll_seconds=POLL_SECONDS,
            workers=2,
            copy_tables=True,  # a truncated file ends the processes that map it
            threads=1,
        ) as service,
    ):
        pids = service.worker_pids()
        clients = CheckingClients(service.port, BODY)
        names = []
        with clients.running():
            for name, fault in Stack(service, path, empty_redis, proxy).faults(step):
                if name == "a worker is killed":
                    assert service.worker_pids() == pids  # none of the previous faults ended a process
                    assert clients.statuses[NO_RESPONSE] == 0
                with fault():
                    clients.wait_for(RESPONSES)
                clients.wait_for(RESPONSES)
                if name.startswith("Redis"):
                    clients.wait_until_complete(RESPONSES)  # otherwise the next fault is not noticed
                names.append(name)
                assert clients.faults() == [], (name, service.output()[-3000:])
        service.wait_until(lambda: send_request(f"{service.url}/v2/models/feed/ready").json()["version"] == "2")
        assert service.output().count("is replaced") == 2  # the workers that the test killed
        assert 0 < clients.degraded < clients.statuses[200]
    assert len(set(names)) == len(names) >= 25 + 150 // step
