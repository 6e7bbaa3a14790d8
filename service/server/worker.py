"""A worker process: what runs in it, and what its supervisor knows about it."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from socket import socket
from typing import Any

import uvicorn
from uvicorn.supervisors.multiprocess import Process

from service.server.graceful import GracefulServer
from service.server.worker_link import ALL_READY, LISTEN, WorkerLink, WorkerState
from service.settings import KILL_MARGIN_SECONDS

START_SECONDS = 120.0
"""Seconds in which a new process must report for the first time; until then it imports modules."""
REPORT_SECONDS = 0.5
"""Seconds between two reports of a process whose event loop does not run yet."""


class Worker(Process):
    """A worker process; it stops when its supervisor is killed.

    Args:
        config: Configuration of uvicorn with a factory of the application, which takes a ``WorkerLink``.
        sockets: Sockets that all workers serve.
        drain_seconds: See ``GracefulServer``.
        all_ready: See ``WorkerLink``.
        failures: Number of consecutive processes before this one that ended too soon.

    Attributes:
        failures: As above; the supervisor counts on when the process ends.
        state: Last state that the process has reached, or None if it has not reported yet.
        served_since: ``time.monotonic()`` when the process was first serving, or None.
        silent_seconds: Seconds since the last report, not counting those in which the supervisor did not run.
        listens: Whether the process was allowed to accept connections and has not stopped.
        hung: Whether the process was killed because it did not report.
        restart_time: ``time.monotonic()`` when the process is to be replaced; infinite while it runs.
    """

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket], drain_seconds: float, *, all_ready: bool, failures: int = 0
    ) -> None:
        super().__init__(config, sockets)
        self._drain_seconds, self._all_ready, self.failures = drain_seconds, all_ready, failures
        self.state: WorkerState | None = None
        self.served_since: float | None = None
        self.silent_seconds = 0.0
        self.listens = self.hung = False
        self.restart_time = math.inf

    # In the worker process

    def target(self, sockets: list[socket] | None = None) -> None:
        """Run the server; uvicorn calls this in the worker process."""
        threading.Thread(target=_stop_with_supervisor, name="supervisor", daemon=True).start()
        link = WorkerLink(self.child_conn, all_ready=self._all_ready)
        create_app: Any = self.config.app
        self.config.app = partial(create_app, link)
        server = GracefulServer(self.config, self._drain_seconds, link)
        threading.Thread(target=_report_until_started, args=[server, link], name="start", daemon=True).start()
        server.run(sockets)

    # In the supervisor

    @property
    def starts(self) -> bool:
        """Whether the process runs and has not loaded its models yet."""
        return self.process.is_alive() and self.served_since is None

    @property
    def serves(self) -> bool:
        """Whether the process accepts connections and has loaded its models."""
        return self.process.is_alive() and self.state is WorkerState.SERVING

    def poll(self, elapsed_seconds: float) -> None:
        """Read the reports since the previous call.

        Args:
            elapsed_seconds: Seconds since then.
        """
        os.set_blocking(self.parent_conn.fileno(), False)
        try:
            reports = os.read(self.parent_conn.fileno(), 4096)
        except OSError:
            reports = b""
        self.silent_seconds += elapsed_seconds
        if reports:
            self.silent_seconds = 0.0
            reached = [state for state in WorkerState if state.value in reports or state is self.state]
            self.state = reached[-1]  # threads report, too, so that an earlier state may come late
            if self.state is WorkerState.SERVING and self.served_since is None:
                self.served_since = time.monotonic()
            if self.state is WorkerState.ENDING:
                self.listens = False

    def silence_limit(self, timeout_seconds: float, grace_seconds: float) -> float:
        """Return the number of seconds without a report after which the process counts as hung."""
        if self.state is None:
            return max(timeout_seconds, START_SECONDS)
        if self.state is WorkerState.ENDING:
            return timeout_seconds + grace_seconds + KILL_MARGIN_SECONDS
        return timeout_seconds

    def allow_listening(self) -> None:
        """Allow the process to accept connections."""
        self.listens = True
        self._send(LISTEN)

    def announce_all_ready(self) -> None:
        """Tell the process that all workers are ready."""
        self._send(ALL_READY)

    def _send(self, message: bytes) -> None:
        with suppress(OSError):  # the process has just ended
            os.write(self.parent_conn.fileno(), message)


def _report_until_started(server: uvicorn.Server, link: WorkerLink) -> None:
    """Report while the models of a replaced worker are loaded, which happens before its event loop runs."""
    while not server.started:
        link.report_starting()
        time.sleep(REPORT_SECONDS)


def _stop_with_supervisor() -> None:
    """Wait for the supervisor to end, then stop this process; a killed supervisor cannot signal its workers."""
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None
    supervisor.join()
    os.kill(os.getpid(), signal.SIGTERM)
