"""Several processes that share a port: uvicorn's supervisor with the shutdown and the metrics of this service."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from service.server.graceful import SIGNAL_EXIT_BASE, GracefulServer
from service.settings import KILL_MARGIN_SECONDS, Settings
from service.telemetry.metrics import worker_restarts
from service.telemetry.shared_metrics import remove_metrics

POLL_SECONDS = 0.5
"""Seconds between two health checks: uvicorn's interval."""
START_SECONDS = 120.0
"""Seconds in which a new process must answer its first health check; until then it imports modules."""
KILLED_SECONDS = 1.0
"""Maximum seconds to wait for a killed process to end."""
HANG_SECONDS = 10.0
"""Seconds without an answer after which a process hangs and is replaced."""
RESTART_SECONDS = 5.0
"""Seconds between the starts of a process that ended before it served and of the next one."""
MAX_FAILED_STARTS = 5
"""Processes per worker that end in a row before they serve, while no other serves, until the supervisor gives up."""

log = logging.getLogger("ranker.service")


class Worker(Process):
    """uvicorn's worker process with this service's shutdown. It stops when its supervisor is killed.

    uvicorn's own health check waits for the answer of one worker at a time, gives a new process no more time than a
    running one, and does not notice an event loop that hangs.

    Args:
        config: configuration of uvicorn with a factory of the application, which takes ``beside_others``.
        sockets: sockets that all workers serve.
        settings: settings of the service.
        beside_others: whether another worker serves.

    Attributes:
        started: ``time.monotonic()`` at the start.
        serves: whether the process accepted connections at its last answer.
        has_served: whether it ever did.
        hung: whether the process was killed because it did not answer.
        ended: whether the supervisor has recorded the end of the process.
    """

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket], settings: Settings, *, beside_others: bool
    ) -> None:
        super().__init__(config, sockets)
        self._settings, self._beside_others = settings, beside_others
        self._is_asked = self._has_answered = False
        self._silent_seconds = 0.0
        self.started = time.monotonic()
        self.serves = self.has_served = self.hung = self.ended = False

    # In the worker process

    def target(self, sockets: list[socket] | None = None) -> None:
        """Run the server; uvicorn calls this in the worker process."""
        create_app: Any = self.config.app
        self.config.app = partial(create_app, beside_others=self._beside_others)
        self._server = GracefulServer(self.config, self._settings.drain_seconds, self._settings.end_seconds)
        threading.Thread(
            target=_stop_with_supervisor, args=[self._settings.end_seconds], name="supervisor", daemon=True
        ).start()
        super().target(sockets)

    def pong(self) -> None:
        """Answer a health check: until the process serves at once, then after the event loop has run."""
        self.child_conn.recv()
        assert isinstance(self._server, GracefulServer)
        self._server.wait_for_tick()
        self.child_conn.send(self._server.started and not self._server.should_exit)

    # In the supervisor

    def check(self) -> None:
        """Read the answer to the last health check, if there is one, and send the next one; kill a process that hangs.

        The time without an answer counts in polls, so that nothing hangs because the machine was suspended.
        """
        if self._is_asked and not self.parent_conn.poll():
            self._silent_seconds += POLL_SECONDS
            limit = HANG_SECONDS if self._has_answered else START_SECONDS
            if not self.hung and self._silent_seconds > limit:
                self.hung = True
                log.error("process %s has not responded for %.1f s and is killed", self.pid, self._silent_seconds)
                self.process.kill()
            return
        if self._is_asked:
            self.serves = self.parent_conn.recv()
            if self.serves and not self.has_served:
                self.has_served = True
                log.info("process %s serves", self.pid)
            self._has_answered, self._silent_seconds = True, 0.0
        self.parent_conn.send(b"ping")
        self._is_asked = True


class Supervisor(Multiprocess):
    """Replaces workers that end or hang. A second signal kills all workers at once.

    Args:
        config: configuration of uvicorn with the number of workers and a factory, see ``Worker``.
        sockets: sockets to serve.
        settings: settings of the service.
        metrics: folder of the metrics that the workers share.

    Attributes:
        failure: why the supervisor gave up, or None.
    """

    processes: list[Worker]  # type: ignore[assignment]

    def __init__(self, config: uvicorn.Config, sockets: list[socket], settings: Settings, metrics: Path) -> None:
        super().__init__(config, sockets)
        self._settings, self._metrics = settings, metrics
        self._restarts = worker_restarts(registry=None)
        self._failed_starts = 0
        self.failure: str | None = None

    def run(self) -> None:
        """Serve until a signal, or until no worker can serve."""
        try:
            super().run()
        finally:  # also after an error: this process would wait for them at its end
            self._kill_all()

    def init_processes(self) -> None:
        """Start the workers; uvicorn calls this once."""
        for _ in range(self.processes_num):
            self.processes.append(self._start_worker())

    def keep_subprocess_alive(self) -> None:
        """Replace the workers that ended or hang; uvicorn calls this twice a second."""
        for position, worker in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            if worker.process.is_alive():
                worker.check()
                continue
            if not worker.ended:
                self._record_end(worker)
            if worker.has_served or time.monotonic() > worker.started + RESTART_SECONDS:
                try:
                    self.processes[position] = self._start_worker()
                except OSError as error:
                    log.error("no process can be started (%s): trying again", error.strerror)

    def join_all(self) -> None:
        """Wait for the workers to end, then kill those that hang; uvicorn calls this after it has signaled all."""
        for listener in self.sockets:
            listener.close()  # else new connections would wait for this copy after the workers have closed theirs
        end = time.monotonic() + self._settings.end_seconds
        while any(worker.process.is_alive() for worker in self.processes):
            signals = [number for number in self.signal_queue if number in (signal.SIGINT, signal.SIGTERM)]
            if signals or self.failure is not None or time.monotonic() > end:
                self._kill_all()
            if signals:
                for worker in self.processes:
                    worker.process.join(KILLED_SECONDS)
                os._exit(SIGNAL_EXIT_BASE + signals[0])
            if time.monotonic() > end + KILL_MARGIN_SECONDS:
                os._exit(1)  # a process in an uninterruptible wait does not end
            time.sleep(0.05)

    def handle_hup(self) -> None:
        """Stop: the terminal was closed, or the user wants to quit, which has ended the workers."""
        self.should_exit.set()

    handle_quit = handle_hup

    def handle_ttin(self) -> None:
        """Do nothing: the number of workers is a setting."""

    handle_ttou = handle_ttin

    def _start_worker(self) -> Worker:
        beside_others = any(worker.serves for worker in self.processes)
        worker = Worker(self.config, self.sockets, self._settings, beside_others=beside_others)
        worker.start()
        return worker

    def _record_end(self, worker: Worker) -> None:
        """Count, log and clean up the end of a worker, and give up if further ones would fail likewise."""
        worker.ended, worker.serves = True, False
        self._restarts.labels("hung" if worker.hung else "died").inc()
        log.warning("process %s died (%s) and is replaced", worker.pid, _describe_exit(worker.exitcode))
        remove_metrics(self._metrics, worker.pid)
        if worker.has_served or any(other.serves for other in self.processes):
            self._failed_starts = 0
            return
        self._failed_starts += 1
        if worker.exitcode == STARTUP_FAILURE or self._failed_starts >= MAX_FAILED_STARTS * self.processes_num:
            cause = _describe_exit(worker.exitcode)
            failed = f"{self._failed_starts} ended before they could, the last with {cause}"
            self.failure = f"no worker process can serve: {failed}"
            self.should_exit.set()

    def _kill_all(self) -> None:
        for worker in self.processes:
            worker.process.kill()


def _describe_exit(code: int | None) -> str:
    """Describe an exit code, which is negative for a signal."""
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"signal {-code}, {signal.Signals(-code).name}"
    return f"exit code {code}"


def _stop_with_supervisor(end_seconds: float) -> None:
    """Wait for the supervisor to end, then stop this process; a killed supervisor cannot signal or kill its workers."""
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None
    supervisor.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(end_seconds)
    os._exit(1)  # the main thread has not handled the signal
