"""The processes of a service: one that has all cores, or several that share the port and divide the cores."""

from __future__ import annotations

import gc
import resource
import socket
import sys
from functools import partial
from typing import Any

import torch
import uvicorn
from starlette.types import ASGIApp

from ranking.errors import RankerError
from service import logs
from service.app import create_app
from service.connection import Connection
from service.repository import Repository
from service.security import exposure, key_file
from service.server import Server
from service.settings import Settings
from service.shared_metrics import shared_metrics
from service.supervisor import Supervisor

BACKLOG = 2048
"""Connections that may wait to be taken."""
SWITCH_SECONDS = 0.0002
"""That a thread waits for the interpreter while the other uses it: the event loop does so at each read and write, and
with Python's 5 ms it could not even refuse what is too much."""
OTHER_FILES = 1_000
"""Open in a process beside its connections: tables of the bundles, libraries, and connections that are refused."""


def serve(settings: Settings, host: str, port: int) -> None:
    """Serves until the process is told to stop. Connections are refused until a process has loaded its models.

    Raises:
        BundleError: nothing can be served.
        ConfigError: keys are needed, or cannot be read.
        RankerError: the address cannot be listened on, or several processes are to share a GPU.
    """
    logs.configure(settings.log_format)
    _raise_file_limit(settings)
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
        "http": Connection,
        "ws": "none",
        "log_config": None,
        "access_log": False,  # metrics count requests
        "backlog": BACKLOG,
        "server_header": False,
        "timeout_keep_alive": settings.keep_alive_seconds,
        "timeout_graceful_shutdown": settings.grace_seconds,
    }
    if settings.workers == 1:
        Server(uvicorn.Config(app(), **how), settings.drain_seconds).run(listeners)
        return
    _require_servable(settings)
    config = uvicorn.Config(app, factory=True, workers=settings.workers, **how)
    with shared_metrics() as folder:
        Supervisor(config, listeners, settings.drain_seconds, settings.grace_seconds, folder).run()


def _application(settings: Settings, operations_port: int | None) -> ASGIApp:
    """The application of one process."""
    logs.configure(settings.log_format)
    torch.set_num_threads(settings.threads)
    sys.setswitchinterval(SWITCH_SECONDS)
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


def _raise_file_limit(settings: Settings) -> None:
    """Lets a process hold as many connections as the settings say: each is a file, and 1,024 are a common limit.

    Raises:
        RankerError: the system allows fewer.
    """
    needed = settings.max_connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise RankerError(
            f"max_connections = {settings.max_connections} needs {needed} open files, but a process may have {hard}: "
            f"raise the limit (ulimit -Hn), or lower max_connections to at most {hard - OTHER_FILES}"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


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
