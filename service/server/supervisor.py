"""Several processes that serve one port: started, replaced when they die, stopped together."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from socket import socket

import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from service.server.uvicorn_server import KILLED, Server
from service.telemetry.multiprocess import prune_dead_workers

LATE_SECONDS = 5.0
"""Beyond the time that it has for stopping; then a process is taken for stuck."""

log = logging.getLogger("ranker.service")


class Worker(Process):
    """One of the processes; it stops by itself if its supervisor is killed.

    Args:
        config: of uvicorn, with a factory of the app.
        sockets: that all of them serve.
        drain_seconds: see ``Server``.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[socket], drain_seconds: float) -> None:
        super().__init__(config, sockets)
        self._drain_seconds = drain_seconds

    def target(self, sockets: list[socket] | None = None) -> None:
        """As uvicorn calls it, in the process."""
        threading.Thread(target=_stop_with_supervisor, name="supervisor", daemon=True).start()
        self._server = Server(self.config, self._drain_seconds, patient=True)
        super().target(sockets)


class Supervisor(Multiprocess):
    """uvicorn's, for our workers. A second signal ends all of them at once.

    Args:
        config: of uvicorn, with a factory of the app and the number of workers.
        sockets: to serve.
        drain_seconds: see ``Server``.
        grace_seconds: in which a worker finishes what it has, after that.
        metrics: folder that the workers share; what dead ones said of their present state is taken back.
    """

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket], drain_seconds: float, grace_seconds: float, metrics: Path
    ) -> None:
        super().__init__(config, sockets)
        self._metrics = metrics
        self._drain_seconds, self._grace_seconds = drain_seconds, grace_seconds

    def init_processes(self) -> None:
        """As uvicorn calls it, once."""
        self.processes = [self._started() for _ in range(self.processes_num)]

    def keep_subprocess_alive(self) -> None:
        """As uvicorn calls it, twice a second."""
        for place, worker in enumerate(self.processes):
            if worker.process.is_alive():  # one that does not answer yet may be loading: uvicorn would kill it
                continue
            worker.join()
            if worker.exitcode == STARTUP_FAILURE:
                self.should_exit.set()
                return
            log.warning("process %s died (exit code %s) and is replaced", worker.pid, worker.exitcode)
            self.processes[place] = self._started()
        prune_dead_workers(self._metrics, {worker.pid for worker in self.processes})

    def join_all(self) -> None:
        """As uvicorn calls it, when all have been told to stop."""
        for listener in self.sockets:
            listener.close()  # the last one to hold it: from now on connections are refused, not left waiting
        ends = time.monotonic() + self._drain_seconds + self._grace_seconds + LATE_SECONDS
        while any(worker.process.is_alive() for worker in self.processes):
            impatient, late = bool(self.signal_queue), time.monotonic() > ends
            if impatient or late:
                for worker in self.processes:
                    worker.process.kill()
                for worker in self.processes:
                    worker.process.join()
            if impatient:
                os._exit(KILLED + self.signal_queue[0])
            time.sleep(0.05)

    def handle_hup(self) -> None:
        """The terminal was closed, which has ended the workers."""
        self.should_exit.set()

    def handle_ttin(self) -> None:
        """The number of workers is a setting."""

    handle_ttou = handle_ttin

    def _started(self) -> Worker:
        worker = Worker(self.config, self.sockets, self._drain_seconds)
        worker.start()
        return worker


def _stop_with_supervisor() -> None:
    """Waits for the supervisor's end, which sends this process a signal only where it can: not if it was killed."""
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None
    supervisor.join()
    os.kill(os.getpid(), signal.SIGTERM)
