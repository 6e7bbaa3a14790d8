"""The service as a process of its own, for tests of behavior that only a process shows."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from pipelines.bench.server_process import STARTED
from tests.support.http_client import read_until_closed, send_request
from tests.support.metrics import samples
from tests.support.ports import HOST
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

Result = TypeVar("Result")

MAX_REPORTED_CHARACTERS = 30_000
"""Characters of a service's output, counted from its end, that the report of a failed test contains."""


def cli_after(statements: str) -> tuple[str, str]:
    """Return the arguments of Python that execute statements, such as changes of constants, before the command line."""
    return "-c", f"import sys\n{statements}\nfrom pipelines.cli.main import main\nsys.exit(main())"


class ServiceProcess:
    """``ranker serve`` on a port that the system chooses, with its worker processes.

    Args:
        repository: repository to serve.
        options: further command-line options.
        cores: CPU cores that the processes may use; None: all.
        python: arguments of Python that start the CLI.
        inherited: file descriptors of this process that the service inherits.
        **settings: settings that differ from their defaults, passed as ``RANKER_*`` variables.

    Attributes:
        process: the process that the test started.
    """

    def __init__(
        self,
        repository: Path,
        options: Sequence[str] = (),
        *,
        cores: set[int] | None = None,
        python: Sequence[str] = ("-m", "pipelines.cli"),
        inherited: Sequence[int] = (),
        **settings: object,
    ) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 — closed with the object
        weakref.finalize(self, self._output.close)
        self.process = subprocess.Popen(
            [sys.executable, *python, "serve", str(repository), "--port", "0", *options],
            env={**os.environ, **{f"RANKER_{name.upper()}": str(value) for name, value in settings.items()}},
            stdout=self._output,
            stderr=subprocess.STDOUT,
            preexec_fn=None if cores is None else lambda: os.sched_setaffinity(0, cores),
            start_new_session=True,
            pass_fds=inherited,
        )
        self._options, self._workers = options, int(str(settings.get("workers", 1)))
        if "--workers" in options:
            self._workers = int(options[options.index("--workers") + 1])
        _services.append(self)

    @cached_property
    def port(self) -> int:
        """Port of the service: that of the options, or the one that the service has bound, which this waits for."""
        if "--port" in self._options:
            return int(self._options[self._options.index("--port") + 1])
        return self._logged_port("serving on")

    @cached_property
    def operations_port(self) -> int:
        """Port of metrics and admin operations, if it is not that of the service."""
        return self._logged_port("serving metrics and admin operations on")

    @property
    def url(self) -> str:
        """Base URL of the service."""
        return f"http://{HOST}:{self.port}"

    def output(self) -> str:
        """All output of the processes so far, also after their end."""
        descriptor = self._output.fileno()  # the processes write at the file's position, so this must not move it
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode(errors="replace")

    def wait_until(self, condition: Callable[[], Result]) -> Result:
        """Poll a condition while the process runs, and return its first true value.

        Raises:
            AssertionError: the process exited, or the condition does not hold in time.
        """

        def check() -> Result:
            assert self.process.poll() is None, self.output()
            return condition()

        return wait_until(check, self.output)

    def wait_until_ready(self) -> None:
        """Wait until the service is ready; at its start, until all workers serve."""
        if self._workers > 1:
            self.wait_until(lambda: self.output().count(STARTED) >= self._workers)
        self.wait_until(self.ready)

    def ready(self) -> bool:
        return send_request(f"{self.url}/v2/health/ready").status == 200

    def connect(self) -> socket.socket:
        return socket.create_connection((HOST, self.port), timeout=TIMEOUT_SECONDS)

    def get(self, path: str, header_lines: str = "") -> bytes:
        """The raw response to a GET request on its own connection; empty if the connection fails."""
        with suppress(OSError), self.connect() as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header_lines}\r\n".encode())
            return read_until_closed(connection)
        return b""

    def metrics(self) -> dict[str, float]:
        """The samples of the metrics; none if the connection fails."""
        return samples(self.get("/metrics").partition(b"\r\n\r\n")[2].decode())

    def wait_for_metric(self, name: str, value: float) -> None:
        self.wait_until(lambda: self.metrics().get(name) == value)

    def worker_pids(self) -> set[int]:
        """Process ids of the supervisor's workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return {int(pid) for pid in children if b"spawn_main" in _command_line(pid)}

    def kill(self) -> None:
        """Kill the process and its workers."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _logged_port(self, words: str) -> int:
        """Wait until the service has logged an address, and return its port."""

        def find() -> re.Match[str] | None:
            return re.search(rf"{words} http://\S+:(\d+),", self.output())

        return int((find() or self.wait_until(find))[1])


_services: list[ServiceProcess] = []
"""Services that the current test has started, and those of fixtures that still run."""


def outputs_of_current_test() -> list[tuple[str, str]]:
    """Return the name and the last output of each service that the current test has started or uses."""
    return [(f"service {service.process.pid}", service.output()[-MAX_REPORTED_CHARACTERS:]) for service in _services]


def forget_services() -> None:
    """Forget the services that have ended; called before each test."""
    _services[:] = [service for service in _services if service.process.poll() is None]


@contextmanager
def started_service(
    repository: Path,
    options: Sequence[str] = (),
    *,
    cores: set[int] | None = None,
    python: Sequence[str] = ("-m", "pipelines.cli"),
    inherited: Sequence[int] = (),
    **settings: object,
) -> Iterator[ServiceProcess]:
    """Start a service and kill all its processes at the end; see ``ServiceProcess`` for the arguments."""
    service = ServiceProcess(repository, options, cores=cores, python=python, inherited=inherited, **settings)
    try:
        yield service
    finally:
        if "COVERAGE_PROCESS_CONFIG" in os.environ:  # a killed process leaves no coverage data
            service.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                service.process.wait(10)
        service.kill()


@contextmanager
def running_service(
    repository: Path, options: Sequence[str] = (), *, cores: set[int] | None = None, **settings: object
) -> Iterator[ServiceProcess]:
    """Start a service, wait until it is ready, and kill all its processes at the end."""
    with started_service(repository, options, cores=cores, **settings) as service:
        service.wait_until_ready()
        yield service


def _command_line(pid: str) -> bytes:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
