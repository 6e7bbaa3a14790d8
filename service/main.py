"""Process start-up: checks, sockets, and one process with all cores or several that share the port."""

from __future__ import annotations

import gc
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from ranking.errors import ConfigError, RankerError
from service.app import create_app
from service.backends.select import has_gpu
from service.feature_store.lookup import open_store
from service.http.auth.keys import read_keys
from service.models.loader import required_models
from service.models.registry import StartupBarrier
from service.server.protocol import LimitedHttpProtocol, require_supported_uvicorn
from service.server.supervisor import GracefulServer, Supervisor
from service.settings import Settings
from service.telemetry import logs
from service.telemetry.multiprocess import shared_metrics

log = logging.getLogger("ranker.service")

OnStartupFailure = Callable[[Exception], None]
"""Callback for a process that can serve no model; it may be called from any thread."""

OPERATIONS_PORT = 8001
"""Default port of metrics and admin operations if other machines can reach the service."""
BACKLOG = 2048
"""Maximum number of connections that wait to be accepted."""
SWITCH_SECONDS = 0.0002
"""Switch interval of Python threads.

The event loop takes the interpreter lock at each read and write. With Python's default of 5 ms it would wait too long
for the inference thread, and could not reject excess requests in time.
"""
OTHER_FILES = 1_000
"""Open files of a process besides admitted connections: bundle tables, libraries, and connections being rejected."""


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until the process receives a signal; listen at once, and become ready when the models are loaded.

    Raises:
        BundleError: No model can be served.
        ConfigError: API keys are required or cannot be read, or the ports or the store's address are not valid.
        RankerError: The address cannot be bound, the system allows too few files, several processes would share a GPU,
            or the installed uvicorn is not supported.
    """
    logs.configure(settings.log_format)
    require_supported_uvicorn()
    _raise_file_limit(settings)
    require_keys(settings, host)
    if settings.keys is not None:
        read_keys(settings.keys)  # report errors before processes start; so do the next two calls
    open_store(settings)
    required_models(settings)
    operations_port = choose_operations_port(settings, host, port)
    listeners = [_bind(host, port, "--port")]
    if operations_port is not None:
        listeners.append(_bind(host, operations_port, "--operations-port"))
        operations_port = listeners[1].getsockname()[1]
    options: dict[str, Any] = {
        "http": LimitedHttpProtocol,
        "ws": "none",
        "log_config": None,
        "access_log": False,  # metrics count requests
        "proxy_headers": False,  # the address of the client is not used
        "backlog": BACKLOG,
        "server_header": False,
        "timeout_keep_alive": settings.keep_alive_seconds,
        "timeout_graceful_shutdown": settings.grace_seconds,
    }
    if settings.workers == 1:
        _serve_in_this_process(settings, operations_port, listeners, options)
    else:
        _serve_with_workers(settings, operations_port, listeners, options)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; names other than localhost count as reachable by others."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def choose_operations_port(settings: Settings, host: str, port: int) -> int | None:
    """Return the port of metrics and admin operations, or None if they share the port of the service.

    Raises:
        ConfigError: The configured port is that of the service.
    """
    chosen = settings.operations_port
    if chosen is None and not is_loopback(host):
        chosen = OPERATIONS_PORT
    if chosen == port and port != 0:
        raise ConfigError(f"operations_port = {chosen} is the service's own port: choose another --operations-port")
    return chosen


def require_keys(settings: Settings, host: str) -> None:
    """Require API keys on an address that other machines can reach.

    Raises:
        ConfigError: There are no keys, and the settings do not say that none are wanted.
    """
    if settings.keys is None and not settings.no_keys and not is_loopback(host):
        raise ConfigError(
            f"other machines can reach {host}, and there are no API keys: make one with 'ranker keys new FILE --name "
            "NAME --scopes rank' and serve with --keys FILE, or pass --no-keys if access is restricted by other means"
        )


def _serve_in_this_process(
    settings: Settings, operations_port: int | None, listeners: list[socket.socket], options: dict[str, Any]
) -> None:
    failures: list[Exception] = []

    def stop(error: Exception) -> None:
        failures.append(error)
        server.should_exit = True

    app = _create_process_app(settings, operations_port, stop)
    server = GracefulServer(uvicorn.Config(app, **options), settings.drain_seconds)
    server.run(listeners)
    if failures:
        raise failures[0]


def _serve_with_workers(
    settings: Settings, operations_port: int | None, listeners: list[socket.socket], options: dict[str, Any]
) -> None:
    _require_no_gpu(settings)
    factory = partial(_create_worker_app, settings, operations_port, StartupBarrier(settings.workers))
    config = uvicorn.Config(factory, factory=True, workers=settings.workers, **options)
    with shared_metrics() as folder:
        supervisor = Supervisor(config, listeners, settings.drain_seconds, settings.grace_seconds, folder)
        supervisor.run()
    if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
        raise RankerError("the service has nothing to serve; its log says why")


def _create_worker_app(settings: Settings, operations_port: int | None, barrier: StartupBarrier) -> ASGIApp:
    if not barrier.all_ready:
        return _create_process_app(settings, operations_port, _exit_with_startup_failure, barrier)
    try:
        return _create_process_app(settings, operations_port, None, barrier)
    except RankerError as error:  # a replaced worker: the others serve what they loaded, and the supervisor retries
        log.error("a process has nothing to serve: %s", error)
        sys.exit(1)


def _exit_with_startup_failure(error: Exception) -> None:
    """End this process with the exit code on which the supervisor stops: other workers would fail likewise."""
    log.error("nothing can be served: %s", error)
    os._exit(STARTUP_FAILURE)  # this is not the main thread, and no request has been admitted


def _create_process_app(
    settings: Settings,
    operations_port: int | None,
    on_startup_failure: OnStartupFailure | None,
    barrier: StartupBarrier | None = None,
) -> ASGIApp:
    """Configure this process and create its application; see ``create_app`` for the arguments."""
    logs.configure(settings.log_format)
    sys.setswitchinterval(SWITCH_SECONDS)
    app = create_app(settings, operations_port, on_startup_failure, barrier)
    gc.collect()
    gc.freeze()  # traversing these objects in each collection would delay requests; the reconciler freezes models, too
    return app


def _require_no_gpu(settings: Settings) -> None:
    if settings.backend == "cuda" or (settings.backend == "auto" and has_gpu()):
        reason = "one process owns a GPU; serve with 1, or choose another backend"
        raise RankerError(f"workers = {settings.workers}: {reason}")


def _raise_file_limit(settings: Settings) -> None:
    """Raise the limit on open files to what ``max_connections`` needs; 1,024 is a common default.

    Raises:
        RankerError: The system allows fewer.
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


def _bind(host: str, port: int, option: str) -> socket.socket:
    """Return a socket that is bound to an address but does not listen yet.

    Raises:
        RankerError: The address cannot be bound; names the option to change.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets with this protocol number.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = f"cannot be listened on ({error.strerror}); choose another {option} or --host"
        raise RankerError(f"{host}:{port} {reason}") from None
    return listener
