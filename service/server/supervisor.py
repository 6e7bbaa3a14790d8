"""Supervision of worker processes that share a port: starts, replaces and stops them."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path
from socket import SHUT_RDWR, socket

import uvicorn
from uvicorn.supervisors.multiprocess import Multiprocess

from service.server.graceful import SIGNAL_EXIT_BASE
from service.server.worker import Worker
from service.server.worker_link import WorkerState
from service.settings import KILL_MARGIN_SECONDS, Settings
from service.telemetry.metrics import worker_restarts
from service.telemetry.multiprocess import prune_dead_workers
from service.telemetry.shared_values import SharedValues

POLL_SECONDS = 0.5
"""Seconds between two polls, unless a worker that starts reports."""
MAX_POLL_SECONDS = 1.0
"""Upper bound on the seconds that count between two polls: a machine that was suspended suspended the workers, too."""
STABLE_SECONDS = 60.0
"""Seconds of serving after which a worker that ends is replaced at once."""
FIRST_DELAY_SECONDS = 1.0
"""Seconds until a worker that ended too soon is replaced; the delay doubles with each further one."""
MAX_DELAY_SECONDS = 60.0
"""Maximum of that delay."""
MAX_FAILED_STARTS = 5
"""Consecutive starts per worker after which the supervisor gives up, if none of them has ever served."""

log = logging.getLogger("ranker.service")


class Supervisor(Multiprocess):
    """uvicorn's supervisor with the workers of this service.

    It replaces workers that end or hang. While no worker accepts connections, the sockets reject them, so that clients
    do not wait. A second signal kills all workers at once.

    Args:
        config: Configuration of uvicorn with a factory of the application and the number of workers.
        sockets: Sockets to serve; each is bound to a port that was chosen explicitly.
        settings: Settings of the service.
        metrics: Folder of the metrics that the workers share; gauges of dead workers are removed from it.

    Attributes:
        failure: Why the supervisor gave up, or None.
    """

    processes: list[Worker]  # type: ignore[assignment]

    def __init__(self, config: uvicorn.Config, sockets: list[socket], settings: Settings, metrics: Path) -> None:
        super().__init__(config, sockets)
        self._settings, self._metrics = settings, metrics
        self._shared_values = SharedValues(metrics)
        self._shared_values.install()
        self._restarts = worker_restarts(registry=None)
        self._all_ready = self._port_open = False
        self._failed_starts = 0
        self._polled = time.monotonic()
        self.failure: str | None = None

    def init_processes(self) -> None:
        """Start the workers; uvicorn calls this once."""
        self.processes = [self._start_worker() for _ in range(self.processes_num)]

    def keep_subprocess_alive(self) -> None:
        """Poll the workers, and until all of them serve also after each report; uvicorn calls this twice a second."""
        while not self.should_exit.is_set() and not self.signal_queue:
            self._poll()
            starting = [worker.parent_conn for worker in self.processes if worker.starts]
            if not starting:
                return
            connection.wait(starting, POLL_SECONDS)

    def _poll(self) -> None:
        """Read the reports of the workers, and replace those that ended or hang."""
        now = time.monotonic()
        elapsed, self._polled = min(now - self._polled, MAX_POLL_SECONDS), now
        for position, worker in enumerate(self.processes):
            if worker.process.is_alive():
                self._check(worker, elapsed)
            elif worker.restart_time == math.inf:
                self._plan_restart(worker, now)
            if worker.restart_time <= now:
                self.processes[position] = self._start_worker(worker.failures)
        self._open_or_close_port()
        self._announce_all_ready()
        self._shared_values.share_all()
        prune_dead_workers(self._metrics, {worker.pid for worker in self.processes})

    def join_all(self) -> None:
        """Wait for the workers to end; uvicorn calls this after it has signaled all of them."""
        for listener in self.sockets:
            listener.close()  # else new connections would wait for this copy after the workers have closed theirs
        periods = self._settings.drain_seconds + self._settings.grace_seconds
        deadline = time.monotonic() + periods + KILL_MARGIN_SECONDS
        while any(worker.process.is_alive() for worker in self.processes):
            signaled = bool(self.signal_queue)
            if signaled or self.failure is not None or time.monotonic() > deadline:
                for worker in self.processes:
                    worker.process.kill()
                for worker in self.processes:
                    worker.process.join()
            if signaled:
                os._exit(SIGNAL_EXIT_BASE + self.signal_queue[0])
            time.sleep(0.05)

    def handle_hup(self) -> None:
        """Stop: the terminal was closed, which has ended the workers."""
        self.should_exit.set()

    def handle_ttin(self) -> None:
        """Do nothing: the number of workers is a setting."""

    handle_ttou = handle_ttin

    def _start_worker(self, failures: int = 0) -> Worker:
        # If no worker serves, the service starts again: alive at once, ready when all workers are.
        self._all_ready = self._all_ready and any(worker.serves for worker in self.processes)
        drain_seconds = self._settings.drain_seconds
        worker = Worker(self.config, self.sockets, drain_seconds, all_ready=self._all_ready, failures=failures)
        worker.start()
        return worker

    def _check(self, worker: Worker, elapsed: float) -> None:
        """Read the reports of a worker that runs, and kill it if it hangs."""
        worker.poll(elapsed)
        if worker.serves:
            self._failed_starts = 0
        timeout, grace = self._settings.worker_timeout_seconds, self._settings.grace_seconds
        if not worker.hung and worker.silent_seconds > worker.silence_limit(timeout, grace):
            worker.hung = True
            log.error("process %s has not responded for %.1f s and is killed", worker.pid, worker.silent_seconds)
            worker.process.kill()

    def _plan_restart(self, worker: Worker, now: float) -> None:
        """Decide when to replace a worker that ended, or to give up."""
        worker.process.join()
        self._restarts.labels("hung" if worker.hung else "died").inc()
        if worker.served_since is None:
            self._failed_starts += 1
            self._give_up_if_useless(worker)
        stable = worker.served_since is not None and now - worker.served_since >= STABLE_SECONDS
        worker.failures = 0 if stable else worker.failures + 1
        delay = 0.0 if stable else min(FIRST_DELAY_SECONDS * 2 ** (worker.failures - 1), MAX_DELAY_SECONDS)
        worker.restart_time = now + delay
        if not self.should_exit.is_set():
            when = f" in {delay:g} s" if delay else ""
            log.warning("process %s died (exit code %s) and is replaced%s", worker.pid, worker.exitcode, when)

    def _give_up_if_useless(self, worker: Worker) -> None:
        """Stop if no worker serves and further starts would fail likewise."""
        if any(other.serves for other in self.processes):
            return
        failed = self._failed_starts
        if failed >= MAX_FAILED_STARTS * self.processes_num:
            cause = _describe_exit(worker.exitcode)
            self.failure = f"no worker process can serve: the last {failed} starts failed, the last {cause}"
            self.should_exit.set()

    def _open_or_close_port(self) -> None:
        """Let workers accept connections, and let the sockets reject connections while none does.

        ``shutdown`` makes a listening socket reject connections, also those in its queue; the next worker that listens
        undoes it. Workers listen only with permission, so that no socket is shut down under a worker that listens.
        """
        for worker in self.processes:
            if worker.state is WorkerState.WAITING and not worker.listens:
                worker.allow_listening()
                self._port_open = True
        if self._port_open and not any(worker.listens and worker.process.is_alive() for worker in self.processes):
            self._port_open = False
            for listener in self.sockets:
                with suppress(OSError):  # the worker ended before it listened
                    listener.shutdown(SHUT_RDWR)
            log.error("no process accepts connections: they are rejected until a worker has started")

    def _announce_all_ready(self) -> None:
        """Let the service become ready once all workers that run can serve, and at least one does."""
        running = [worker for worker in self.processes if worker.process.is_alive()]
        if running and not self._all_ready and all(worker.serves for worker in running):
            self._all_ready = True
            for worker in running:
                worker.announce_all_ready()


def _describe_exit(code: int | None) -> str:
    """Describe an exit code, which is negative for a signal."""
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"by signal {-code} ({signal.Signals(-code).name})"
    return f"with exit code {code}"
