"""A Redis server for tests, on a free port and without persistence."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.support.ports import HOST, free_port
from tests.support.waiting import wait_until


class RedisServer:
    """A redis-server process that can be stopped and started again.

    Args:
        folder: folder of the server, in which replication writes files; created.
        options: command-line options of redis-server.

    Attributes:
        port: port of the server.
        url: address of its database 0.
        client: client of database 0.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self.port = folder, free_port()
        folder.mkdir(parents=True, exist_ok=True)
        self.url = f"redis://{HOST}:{self.port}/0"
        self._options = options
        self.client = redis.Redis(port=self.port)
        self.start()

    def start(self) -> None:
        command = ["redis-server", "--bind", HOST, "--port", str(self.port), "--save", "", *self._options]
        self._process = subprocess.Popen(command, cwd=self._folder, stdout=subprocess.DEVNULL)
        wait_until(self._listens, "redis-server listens")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _listens(self) -> bool:
        assert self._process.poll() is None, "redis-server exited"
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0


def require_redis() -> None:
    """Skip the test if redis-server is not installed, or fail it in CI."""
    if shutil.which("redis-server") is None:
        message = "redis-server is not installed (Debian: redis-server)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """Run a server; skip the test if redis-server is not installed, or fail it in CI."""
    require_redis()
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder), *options)
        try:
            yield server
        finally:
            server.client.close()
            server.stop()
