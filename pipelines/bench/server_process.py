"""Servers as processes of their own, on cores of their own.

    python -m pipelines.bench.serving SETTINGS PORT

serves with the service's ``Settings`` as JSON.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pipelines.bench.load import HOST
from ranking.errors import RankerError
from service.main import serve
from service.settings import Settings

START_SECONDS, STOP_SECONDS = 120.0, 15.0
TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """A server that is started, waited for and stopped again, with all its processes.

    Args:
        command: what starts it; "{port}" stands for the port.
        ready: path that answers 200 once it serves.
        cores: that its processes may use.
        threads: that a numeric library may use in one of them.
    """

    def __init__(self, command: Sequence[str], ready: str, cores: Sequence[int], threads: int = 1) -> None:
        self.port = free_port()
        self._command = [part.replace("{port}", str(self.port)) for part in command]
        self.cores = cores
        self._ready, self._threads = ready, threads

    def __enter__(self) -> Self:
        """Returns once it serves.

        Raises:
            RankerError: it does not; says what it wrote last.
        """
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command,
            env={**os.environ, "OMP_NUM_THREADS": str(self._threads)},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, self.cores),
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__(None, None, None)
                raise RankerError(f"{' '.join(self._command)} does not serve: {self._said()}")
            time.sleep(0.05)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Stops it."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            if not _processes(self._process.pid):
                break
            os.killpg(self._process.pid, how)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        self._process.wait()

    def cpu_seconds(self) -> float:
        """CPU time of its processes so far."""
        return sum(ticks for _, ticks in _processes(self._process.pid)) / TICKS

    def resident_bytes(self) -> int:
        """Memory of its processes that is resident."""
        pages = 0
        for process, _ in _processes(self._process.pid):
            pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=1)
        try:
            connection.request("GET", self._ready)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]


def ours(settings: Settings, cores: Sequence[int]) -> Server:
    """The service of this repository."""
    command = [sys.executable, "-m", "pipelines.bench.serving", settings.model_dump_json(), "{port}"]
    return Server(command, "/v2/health/ready", cores)


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _processes(session: int) -> list[tuple[int, int]]:
    """(Process, ticks of CPU time) of a session that has not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        state, of_session, user, system = fields[0], int(fields[3]), int(fields[11]), int(fields[12])
        if of_session == session and state != "Z":
            found.append((int(stat.parent.name), user + system))
    return found


if __name__ == "__main__":
    serve(Settings.model_validate_json(sys.argv[1]), HOST, int(sys.argv[2]))
