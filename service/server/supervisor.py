"""Shutdown of a server process in steps, and supervision of worker processes that share a port.

Load balancers need the steps: not ready, then no new connections, then exit. The supervisor starts the workers,
replaces them after a crash, and stops them together.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from socket import socket
from types import FrameType

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from service.server.context import STATE_KEY
from service.telemetry.multiprocess import prune_dead_workers

KILL_MARGIN_SECONDS = 5.0
"""Seconds after the drain and grace periods until workers that still run are killed."""

SIGNAL_EXIT_BASE = 128
"""Added to a signal's number, this is the exit code of a process that the signal ends, as in shells."""

log = logging.getLogger("ranker.service")


class GracefulServer(uvicorn.Server):
    """Stops in steps after the first SIGTERM or SIGINT, and at once after the second.

    After the first signal the process is not ready but accepts connections for ``drain_seconds``. Then it accepts no
    connections and finishes the requests in progress.

    Args:
        config: Configuration of uvicorn with an application of ``create_app``; ``timeout_graceful_shutdown`` bounds
            the time to finish the requests in progress.
        drain_seconds: Seconds in which load balancers notice that the process is not ready.
        ignore_second_signal: Whether a supervisor decides when to kill this process, instead of the second signal.
    """

    def __init__(self, config: uvicorn.Config, drain_seconds: float, *, ignore_second_signal: bool = False) -> None:
        super().__init__(config)
        self._drain_seconds, self._ignore_second_signal = drain_seconds, ignore_second_signal
        self._close_time = math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle a signal; uvicorn calls this for each one."""
        if self._close_time != math.inf:
            if not self._ignore_second_signal:
                os._exit(SIGNAL_EXIT_BASE + sig)
            return
        self._close_time = time.monotonic()
        if self.started:  # a process that was never ready need not drain
            self._close_time += self._drain_seconds
            self.lifespan.state[STATE_KEY].lifecycle.drain()
            log.info("received a signal to stop: not ready, connections close in %g s", self._drain_seconds)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to stop serving; uvicorn calls this ten times a second."""
        return await super().on_tick(counter) or time.monotonic() >= self._close_time


class Worker(Process):
    """A worker process; it stops when its supervisor is killed.

    Args:
        config: Configuration of uvicorn with a factory of the application.
        sockets: Sockets that all workers serve.
        drain_seconds: See ``GracefulServer``.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[socket], drain_seconds: float) -> None:
        super().__init__(config, sockets)
        self._drain_seconds = drain_seconds

    def target(self, sockets: list[socket] | None = None) -> None:
        """Run the server; uvicorn calls this in the worker process."""
        threading.Thread(target=_stop_with_supervisor, name="supervisor", daemon=True).start()
        self._server = GracefulServer(self.config, self._drain_seconds, ignore_second_signal=True)
        super().target(sockets)


class Supervisor(Multiprocess):
    """uvicorn's supervisor with the workers of this service; a second signal kills all of them at once.

    Args:
        config: Configuration of uvicorn with a factory of the application and the number of workers.
        sockets: Sockets to serve.
        drain_seconds: See ``GracefulServer``.
        grace_seconds: Seconds in which a worker finishes its requests after the drain period.
        metrics: Folder of the metrics that the workers share; gauges of dead workers are removed from it.
    """

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket], drain_seconds: float, grace_seconds: float, metrics: Path
    ) -> None:
        super().__init__(config, sockets)
        self._metrics = metrics
        self._drain_seconds, self._grace_seconds = drain_seconds, grace_seconds

    def init_processes(self) -> None:
        """Start the workers; uvicorn calls this once."""
        self.processes = [self._start_worker() for _ in range(self.processes_num)]

    def keep_subprocess_alive(self) -> None:
        """Replace dead workers; uvicorn calls this twice a second."""
        for position, worker in enumerate(self.processes):
            if worker.process.is_alive():  # uvicorn would kill a worker that does not respond while it loads models
                continue
            worker.join()
            if worker.exitcode == STARTUP_FAILURE:
                self.should_exit.set()
                return
            log.warning("process %s died (exit code %s) and is replaced", worker.pid, worker.exitcode)
            self.processes[position] = self._start_worker()
        prune_dead_workers(self._metrics, {worker.pid for worker in self.processes})

    def join_all(self) -> None:
        """Wait for the workers to end; uvicorn calls this after it has signaled all of them."""
        for listener in self.sockets:
            listener.close()  # else new connections would wait for this copy after the workers have closed theirs
        deadline = time.monotonic() + self._drain_seconds + self._grace_seconds + KILL_MARGIN_SECONDS
        while any(worker.process.is_alive() for worker in self.processes):
            signaled = bool(self.signal_queue)
            if signaled or time.monotonic() > deadline:
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

    def _start_worker(self) -> Worker:
        worker = Worker(self.config, self.sockets, self._drain_seconds)
        worker.start()
        return worker


def _stop_with_supervisor() -> None:
    """Wait for the supervisor to end, then stop this process; a killed supervisor cannot signal its workers."""
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None
    supervisor.join()
    os.kill(os.getpid(), signal.SIGTERM)
