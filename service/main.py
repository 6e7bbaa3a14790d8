"""The processes of a service: one that has all cores, or several that share the port and divide the cores."""

from __future__ import annotations

import gc
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from ranking.errors import RankerError
from service.app import create_app
from service.backends.select import has_gpu
from service.feature_store.open import open_store
from service.http.auth import exposure, key_file
from service.models.loader import required_models
from service.models.startup_barrier import StartupBarrier
from service.server.protocol import LimitedHttpProtocol
from service.server.supervisor import Supervisor
from service.server.uvicorn_server import Server
from service.settings import Settings
from service.telemetry import logs
from service.telemetry.multiprocess import shared_metrics

log = logging.getLogger("ranker.service")

GiveUp = Callable[[Exception], None]
"""What is done if nothing can be served."""

BACKLOG = 2048
"""Connections that may wait to be taken."""
SWITCH_SECONDS = 0.0002
"""That a thread waits for the interpreter while the other uses it: the event loop does so at each read and write, and
with Python's 5 ms it could not even refuse what is too much."""
OTHER_FILES = 1_000
"""Open in a process beside its connections: tables of the bundles, libraries, and connections that are refused."""


def serve(settings: Settings, host: str, port: int) -> None:
    """Serves until the process is told to stop. It listens at once, and is ready when its models are loaded.

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
    open_store(settings)  # which says the same of the store's address
    required_models(settings)  # and this of what is published
    of_operations = exposure.operations_port(settings, host, port)
    listeners = [_bound(host, port, "--port")]
    if of_operations is not None:
        listeners.append(_bound(host, of_operations, "--operations-port"))
        of_operations = listeners[1].getsockname()[1]
    how: Any = {
        "http": LimitedHttpProtocol,
        "ws": "none",
        "log_config": None,
        "access_log": False,  # metrics count requests
        "proxy_headers": False,  # nothing depends on where a request comes from
        "backlog": BACKLOG,
        "server_header": False,
        "timeout_keep_alive": settings.keep_alive_seconds,
        "timeout_graceful_shutdown": settings.grace_seconds,
    }
    if settings.workers == 1:
        _serve_alone(settings, of_operations, listeners, how)
        return
    _require_no_gpu(settings)
    worker = partial(_worker, settings, of_operations, StartupBarrier(settings.workers))
    config = uvicorn.Config(worker, factory=True, workers=settings.workers, **how)
    with shared_metrics() as folder:
        supervisor = Supervisor(config, listeners, settings.drain_seconds, settings.grace_seconds, folder)
        supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise RankerError("the service has nothing to serve; its log says why")


def _serve_alone(
    settings: Settings, operations_port: int | None, listeners: list[socket.socket], how: dict[str, Any]
) -> None:
    failures: list[Exception] = []

    def give_up(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    server = Server(uvicorn.Config(_application(settings, operations_port, give_up), **how), settings.drain_seconds)
    server.run(listeners)
    if failures:
        raise failures[0]


def _worker(settings: Settings, operations_port: int | None, start: StartupBarrier) -> ASGIApp:
    """The application of one process of several."""
    if not start.all_ready:
        return _application(settings, operations_port, _end_service, start)
    try:
        return _application(settings, operations_port, None, start)
    except RankerError as error:  # others serve what they have loaded, and the supervisor tries again
        log.error("a process has nothing to serve: %s", error)
        sys.exit(1)


def _end_service(error: Exception) -> None:
    """Ends this process, and by its exit code the service: another process would find the same."""
    log.error("nothing can be served: %s", error)
    os._exit(STARTUP_FAILURE)  # this is not the main thread; no request has been admitted


def _application(
    settings: Settings, operations_port: int | None, give_up: GiveUp | None, start: StartupBarrier | None = None
) -> ASGIApp:
    """The application of one process, as ``create_app`` has it."""
    logs.configure(settings.log_format)
    sys.setswitchinterval(SWITCH_SECONDS)
    app = create_app(settings, operations_port, give_up, start)
    gc.collect()
    gc.freeze()  # what stays is not walked over at each collection, which would hold requests up; nor are models
    return app


def _require_no_gpu(settings: Settings) -> None:
    if settings.backend == "cuda" or (settings.backend == "auto" and has_gpu()):
        raise RankerError(
            f"workers = {settings.workers}: one process owns a GPU; serve with 1, or choose another backend"
        )


def _raise_file_limit(settings: Settings) -> None:
    """Lets a process hold as many connections as the settings say: each is a file, and 1,024 are a common limit.

    Raises:
        RankerError: the system allows fewer.
    """
    files = settings.max_connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        raise RankerError(
            f"max_connections = {settings.max_connections} needs {files} open files, but a process may have {hard}: "
            f"raise the limit (ulimit -Hn), or lower max_connections to at most {hard - OTHER_FILES}"
        )
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


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
