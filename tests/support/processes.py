"""A real service as a process of its own, for tests of what only a process shows."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

WAIT = 180.0
"""Seconds that starting or stopping may take on a busy machine."""
HOST = "127.0.0.1"


class Service:
    """``ranker serve`` and its processes.

    Args:
        repository: that it serves.
        cores: that it may use.
        settings: by name, beside its defaults.
    """

    def __init__(self, repository: Path, cores: set[int] | None = None, **settings: object) -> None:
        with socket.create_server((HOST, 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"http://{HOST}:{self.port}"
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 — it lives as long as the service
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pipelines.cli", "serve", str(repository), "--port", str(self.port)],
            env={**os.environ, **{f"RANKER_{name.upper()}": str(value) for name, value in settings.items()}},
            stderr=self._said,
            preexec_fn=None if cores is None else lambda: os.sched_setaffinity(0, cores),
            start_new_session=True,
        )

    def said(self) -> str:
        """What it wrote so far."""
        self._said.seek(0)
        return self._said.read().decode()

    def until(self, happened: Callable[[], bool]) -> None:
        """Waits for something while the service runs."""
        deadline = time.monotonic() + WAIT
        while not happened():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def connect(self) -> socket.socket:
        """A connection to it."""
        return socket.create_connection((HOST, self.port), timeout=WAIT)

    def answer(self, path: str, head: str = "") -> bytes:
        """The answer to a GET on a connection of its own; empty if nobody listens or answers."""
        with suppress(OSError), self.connect() as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}\r\n".encode())
            return read(connection)
        return b""

    def ready(self) -> bool:
        """Whether it says so."""
        return b" 200 " in self.answer("/v2/health/ready")[:20]

    def workers(self) -> set[int]:
        """Processes of a supervisor that serve."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return {int(pid) for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@contextmanager
def serving(repository: Path, cores: set[int] | None = None, **settings: object) -> Iterator[Service]:
    """A service that is ready, and ends with all its processes."""
    service = Service(repository, cores, **settings)
    try:
        service.until(service.ready)
        yield service
    finally:
        with suppress(ProcessLookupError):
            os.killpg(service.process.pid, signal.SIGKILL)
        service.process.wait()


def read(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    received = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65_536):
            received += piece
    return received
