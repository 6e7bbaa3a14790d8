"""Run a server as its own processes, pinned to cores.

    python -m pipelines.bench.server_process SETTINGS

starts the service, on a port that the system chooses, with its ``Settings`` as JSON.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from pipelines.bench.load import HOST
from ranking.errors import RankerError
from service.settings import Settings

START_SECONDS, STOP_SECONDS = 120.0, 15.0
"""Timeouts for the start of a server and for its reaction to a signal."""
STARTED = "Application startup complete"
"""Text of uvicorn's log line before a process accepts connections."""
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class ServerProcess:
    """Starts a server, waits until it is ready, and stops all its processes at the end of the block.

    Args:
        command: command line; "{port}" is replaced by a port that is kept free of other programs. The server must set
            ``SO_REUSEADDR`` to listen on it, as servers do. A command without "{port}" chooses a port itself and
            prints ``serving on http://HOST:PORT,``.
        ready_path: path that returns status 200 once the server is ready.
        cores: cores that the processes may use.
        threads: threads of numeric libraries per process.
        processes: number of processes that must have printed ``STARTED`` until the server is ready.
    """

    def __init__(
        self,
        command: Sequence[str],
        ready_path: str,
        cores: Sequence[int],
        threads: int = 1,
        processes: int = 0,
    ) -> None:
        self.cores = cores
        self._command, self._ready_path, self._threads, self._processes = command, ready_path, threads, processes
        self._reserved: socket.socket | None = None
        self._port: int | None = None

    def __enter__(self) -> Self:
        """Start the server and wait until it is ready.

        Raises:
            RankerError: the server does not become ready; the message ends with its output.
        """
        self._log = tempfile.TemporaryFile()
        if any("{port}" in part for part in self._command):
            self._reserved = _reserve_port()
            self._port = self._reserved.getsockname()[1]
        command = [part.replace("{port}", str(self._port)) for part in self._command]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "OMP_NUM_THREADS": str(self._threads)},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, self.cores),
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise RankerError(f"{' '.join(command)} did not become ready: {self._output()[-2000:]}")
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop all processes of the server."""
        sessions = {self._process.pid}
        for number in (signal.SIGTERM, signal.SIGKILL):
            processes = _server_processes(sessions)
            if not processes:
                break
            sessions |= {process.session for process in processes.values()}  # Finds children of those that end first.
            for pid in processes:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        self._process.wait()
        if self._reserved is not None:
            self._reserved.close()

    @property
    def port(self) -> int:
        """TCP port on which the server listens."""
        assert self._port is not None, "the server is not ready"
        return self._port

    @property
    def pid(self) -> int:
        """Id of the first process of the server."""
        return self._process.pid

    def cpu_seconds(self) -> float:
        """Return the CPU time that the processes have used."""
        return sum(process.ticks for process in _server_processes({self._process.pid}).values()) / CLOCK_TICKS

    def pids(self) -> list[int]:
        """Return the ids of all processes of the server."""
        return list(_server_processes({self._process.pid}))

    def _is_ready(self) -> bool:
        if self._port is None:
            address = re.search(r"serving on http://\S+:(\d+),", self._output())
            if address is None:
                return False
            self._port = int(address[1])
        if self._output().count(STARTED) < self._processes:
            return False
        connection = http.client.HTTPConnection(HOST, self._port, timeout=1)
        try:
            connection.request("GET", self._ready_path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _output(self) -> str:
        descriptor = self._log.fileno()  # The server writes at the file's position, so this must not move it.
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")


def service_process(settings: Settings, cores: Sequence[int]) -> ServerProcess:
    """Create the process of the DSelect Ranker service."""
    command = [sys.executable, "-m", "pipelines.bench.server_process", settings.model_dump_json()]
    return ServerProcess(command, "/v2/health/ready", cores, processes=settings.workers)


def _reserve_port() -> socket.socket:
    """Return a socket that is bound to a TCP port but does not listen, so that no other program gets the port.

    A server can listen on the port if both sockets have ``SO_REUSEADDR``. The socket gets the option after it is bound:
    with it, two programs could reserve the same port.
    """
    reserved = socket.socket()
    reserved.bind((HOST, 0))
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reserved


class _Process(NamedTuple):
    """A running process: its parent, its session and its ticks of CPU time."""

    parent: int
    session: int
    ticks: int


def _server_processes(sessions: set[int]) -> dict[int, _Process]:
    """Return the running processes of these sessions and their descendants, which may have sessions of their own."""
    running = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # The process has just ended.
            continue
        if fields[0] != "Z":
            running[int(stat.parent.name)] = _Process(int(fields[1]), int(fields[3]), int(fields[11]) + int(fields[12]))
    members = {pid for pid, process in running.items() if process.session in sessions}
    size = 0
    while size < len(members):
        size = len(members)
        members |= {pid for pid, process in running.items() if process.parent in members}
    return {pid: running[pid] for pid in members}


def main(settings: str) -> None:
    """Run the service."""
    from service.main import serve  # Only the process of the service needs the application.

    serve(Settings.model_validate_json(settings), HOST, port=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
