"""The processes of a service: one that has all cores, or several that share the port and divide the cores."""

from __future__ import annotations

import gc
import socket
from functools import partial
from pathlib import Path
from typing import Any

import torch
import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess

from ranking.errors import RankerError
from service import logs
from service.app import create_app
from service.repository import Repository
from service.security import exposure, key_file
from service.settings import Settings
from service.shared_metrics import forget_dead, shared_metrics

BACKLOG = 2048
"""Connections that may wait to be taken."""


def serve(settings: Settings, host: str, port: int) -> None:
    """Serves until the process is told to stop. Connections are refused until a process has loaded its models.

    Raises:
        BundleError: nothing can be served.
        ConfigError: keys are needed, or cannot be read.
        RankerError: the address cannot be listened on, or several processes are to share a GPU.
    """
    logs.configure(settings.log_format)
    exposure.require_keys(settings, host)
    if settings.keys is not None:
        key_file.read(settings.keys)  # says now what is wrong, not when processes are started
    of_operations = exposure.operations_port(settings, host, port)
    listeners = [_bound(host, port, "--port")]
    if of_operations is not None:
        listeners.append(_bound(host, of_operations, "--operations-port"))
        of_operations = listeners[1].getsockname()[1]
    app = partial(_application, settings, of_operations)
    how: Any = {
        "log_config": None,
        "access_log": False,
        "backlog": BACKLOG,
        "server_header": False,
    }  # metrics count requests
    if settings.workers == 1:
        uvicorn.Server(uvicorn.Config(app(), **how)).run(listeners)
        return
    _require_servable(settings)
    with shared_metrics() as folder:
        Supervisor(uvicorn.Config(app, factory=True, workers=settings.workers, **how), listeners, folder).run()


class Supervisor(Multiprocess):
    """Starts processes, replaces those that died, and takes back what those said of their present state."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket], metrics: Path) -> None:
        super().__init__(config, sockets)
        self._metrics = metrics

    def keep_subprocess_alive(self) -> None:
        """Called twice a second."""
        super().keep_subprocess_alive()
        forget_dead(self._metrics, {process.pid for process in self.processes})


def _application(settings: Settings, operations_port: int | None) -> ASGIApp:
    """The application of one process."""
    logs.configure(settings.log_format)
    torch.set_num_threads(settings.threads)
    app = create_app(settings, operations_port)
    gc.collect()
    gc.freeze()  # the models stay: walking over them at each collection would hold requests up
    return app


def _require_servable(settings: Settings) -> None:
    """Raises here what would otherwise end every process that is started."""
    repository = Repository(settings)
    if any(served.runtime.backend == "cuda" for served in repository):
        raise RankerError(
            f"workers = {settings.workers}: one process owns a GPU; serve with 1, or choose another backend"
        )


def _bound(host: str, port: int, option: str) -> socket.socket:
    """A socket with this address; whoever serves from it makes it listen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends what is written at once (TCP_NODELAY) only where it sees that this is TCP
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise RankerError(
            f"{host}:{port} cannot be listened on ({error.strerror}); choose another {option} or --host"
        ) from None
    return listener
