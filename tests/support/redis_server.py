"""A real Redis for tests, on a free port of this machine; it keeps nothing when it stops."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

START_SECONDS = 30.0


class RedisServer:
    """One server, which can be stopped and started again.

    Args:
        options: of redis-server.
    """

    def __init__(self, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self.client = redis.Redis(port=self.port)
        self.start()

    def start(self) -> None:
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while not self._listens():
            assert self._process.poll() is None, "redis-server ended"
            assert time.monotonic() < deadline, "redis-server does not listen"
            time.sleep(0.02)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """A server while the block runs; the test is skipped where there is no redis-server, except in CI."""
    if shutil.which("redis-server") is None:
        message = "redis-server is not installed (Debian: redis-server)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    server = RedisServer(*options)
    try:
        yield server
    finally:
        server.client.close()
        server.stop()
