"""Several processes that share a port: uvicorn's supervisor with the shutdown and the metrics of this service."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from socket import socket

import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from service.server.graceful import SIGNAL_EXIT_BASE, GracefulServer
from service.settings import KILL_MARGIN_SECONDS, Settings
from service.telemetry.metrics import worker_restarts

POLL_SECONDS = 0.5
"""Seconds between two health checks: uvicorn's interval."""
START_SECONDS = 120.0
"""Seconds in which a new process must answer its first health check; until then it imports modules."""
MAX_FAILED_STARTS = 5
"""Consecutive processes that end before they serve, while no other serves, after which the supervisor gives up."""

log = logging.getLogger("ranker.service")


class Worker(Process):
    """uvicorn's worker process with this service's shutdown. It stops when its supervisor is killed.

    uvicorn's own health check waits for the answer of one worker at a time, gives a new process no more time than a
    running one, and does not notice an event loop that hangs.

    Args:
        config: Configuration of uvicorn with a factory of the application.
        sockets: Sockets that all workers serve.
        drain_seconds: See ``GracefulServer``.

    Attributes:
        serves: Whether the process accepted connections at its last answer.
        silent_seconds: Seconds for which the supervisor has waited for an answer, not counting those in which it did
            not run itself.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[socket], drain_seconds: float) -> None:
        super().__init__(config, sockets)
        self._drain_seconds = drain_seconds
        self._is_asked = self._has_answered = False
        self.serves = False
        self.silent_seconds = 0.0

    # In the worker process

    def target(self, sockets: list[socket] | None = None) -> None:
        """Run the server; uvicorn calls this in the worker process."""
        self._server = GracefulServer(self.config, self._drain_seconds, supervised=True)
        threading.Thread(target=_stop_with_supervisor, name="supervisor", daemon=True).start()
        super().target(sockets)

    def pong(self) -> None:
        """Answer a health check: until the process serves at once, then after the event loop has run."""
        self.child_conn.recv()
        assert isinstance(self._server, GracefulServer)
        self._server.wait_for_tick()
        self.child_conn.send(self._server.started)

    # In the supervisor

    def check(self) -> None:
        """Read the answer to the last health check, if there is one, and then send the next one."""
        with suppress(OSError, EOFError):  # the process has just ended
            if self._is_asked:
                if not self.parent_conn.poll():
                    self.silent_seconds += POLL_SECONDS
                    return
                self.serves = self.parent_conn.recv()
                self._has_answered, self.silent_seconds = True, 0.0
            self.parent_conn.send(b"ping")
            self._is_asked = True

    def is_hung(self, timeout_seconds: float) -> bool:
        """Whether the process has not answered for longer than this, or than ``START_SECONDS`` if it is new."""
        limit = timeout_seconds if self._has_answered else max(timeout_seconds, START_SECONDS)
        return self.silent_seconds > limit


class Supervisor(Multiprocess):
    """Replaces workers that end or hang. A second signal kills all workers at once.

    Args:
        config: Configuration of uvicorn with a factory of the application and the number of workers.
        sockets: Sockets to serve.
        settings: Settings of the service.
        metrics: Folder of the metrics that the workers share; gauges of dead workers are removed from it.

    Attributes:
        failure: Why the supervisor gave up, or None.
    """

    processes: list[Worker]  # type: ignore[assignment]

    def __init__(self, config: uvicorn.Config, sockets: list[socket], settings: Settings, metrics: Path) -> None:
        super().__init__(config, sockets)
        self._settings, self._metrics = settings, metrics
        self._restarts = worker_restarts(registry=None)
        self._failed_starts = 0
        self.failure: str | None = None

    def init_processes(self) -> None:
        """Start the workers; uvicorn calls this once."""
        self.processes = [self._start_worker() for _ in range(self.processes_num)]

    def keep_subprocess_alive(self) -> None:
        """Replace the workers that ended or hang; uvicorn calls this twice a second."""
        for position, worker in enumerate(self.processes):
            worker.check()
            hangs = worker.process.is_alive() and worker.is_hung(self._settings.worker_timeout_seconds)
            if self.should_exit.is_set() or (worker.process.is_alive() and not hangs):
                continue
            if hangs:
                log.error("process %s has not responded for %.1f s and is killed", worker.pid, worker.silent_seconds)
            worker.kill()
            worker.process.join()
            mark_process_dead(worker.pid, str(self._metrics))  # type: ignore[no-untyped-call]
            self._restarts.labels("hung" if hangs else "died").inc()
            if not self._gives_up(worker):
                log.warning("process %s died (%s) and is replaced", worker.pid, _describe_exit(worker.exitcode))
                self.processes[position] = self._start_worker()

    def join_all(self) -> None:
        """Wait for the workers to end, then kill those that hang; uvicorn calls this after it has signaled all."""
        for listener in self.sockets:
            listener.close()  # else new connections would wait for this copy after the workers have closed theirs
        periods = self._settings.drain_seconds + self._settings.grace_seconds
        deadline = time.monotonic() + periods + KILL_MARGIN_SECONDS
        while any(worker.process.is_alive() for worker in self.processes):
            if self.signal_queue or self.failure is not None or time.monotonic() > deadline:
                for worker in self.processes:
                    worker.process.kill()
            time.sleep(0.05)
        if self.signal_queue:
            os._exit(SIGNAL_EXIT_BASE + self.signal_queue[0])

    def handle_hup(self) -> None:
        """Stop: the terminal was closed, which has ended the workers."""
        self.should_exit.set()

    def handle_ttin(self) -> None:
        """Do nothing: the number of workers is a setting."""

    handle_ttou = handle_ttin

    def _start_worker(self) -> Worker:
        worker = Worker(self.config, self.sockets, self._settings.drain_seconds)
        worker.start()
        return worker

    def _gives_up(self, ended: Worker) -> bool:
        """Stop the service if no worker serves and further starts would fail likewise."""
        if ended.serves or any(worker.serves for worker in self.processes):
            self._failed_starts = 0
            return False
        self._failed_starts += 1
        if self._failed_starts < MAX_FAILED_STARTS:
            return False
        cause = _describe_exit(ended.exitcode)
        self.failure = f"no worker process can serve: {MAX_FAILED_STARTS} have ended before, the last with {cause}"
        self.should_exit.set()
        return True


def _describe_exit(code: int | None) -> str:
    """Describe an exit code, which is negative for a signal."""
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"signal {-code}, {signal.Signals(-code).name}"
    return f"exit code {code}"


def _stop_with_supervisor() -> None:
    """Wait for the supervisor to end, then stop this process; a killed supervisor cannot signal its workers."""
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None
    supervisor.join()
    os.kill(os.getpid(), signal.SIGTERM)
