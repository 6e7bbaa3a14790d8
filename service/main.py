"""Process start-up: checks, sockets, and one process with all cores or several that share the port."""

from __future__ import annotations

import gc
import logging
import resource
import socket
import sys
from functools import partial
from ipaddress import ip_address
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from ranking.artifacts.bounded_calls import BoundedCalls
from ranking.errors import ConfigError, RankerError
from service.app import create_app
from service.backends.select import check_backend
from service.feature_store.lookup import open_store
from service.http.auth.keys import read_keys
from service.logs.answered_requests import AnsweredRequests
from service.models.loader import check_repository
from service.server.graceful import GracefulServer
from service.server.protocol import LimitedHttpProtocol, require_supported_uvicorn
from service.server.supervisor import Supervisor
from service.settings import Settings
from service.telemetry import logs
from service.telemetry.shared_metrics import shared_metrics

log = logging.getLogger("ranker.service")

OPERATIONS_PORT = 8001
"""Default port of metrics and admin operations if other machines can reach the service."""
BACKLOG = 2048
"""Maximum number of connections that wait to be accepted."""
SWITCH_SECONDS = 0.0002
"""Switch interval of Python threads.

The event loop takes the interpreter lock at each read and write. With Python's default of 5 ms it would wait too long
for the inference thread, and could not reject excess requests in time.
"""
CHECK_SECONDS = 10.0
"""Seconds to wait for the repository before the service starts without having checked it."""
OTHER_FILES = 1_000
"""Open files of a process besides admitted connections: bundle tables, libraries, and connections being rejected."""


def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until the process receives a signal; listen at once, and become ready when the models are loaded.

    Several processes listen after their first attempt to load the models.

    Raises:
        BundleError: the repository does not exist or lacks the default model or any model, or this machine lacks
            what the backend needs.
        ConfigError: API keys are required or cannot be read, or the ports or the store's address are not valid.
        RankerError: the address cannot be bound, the system allows too few files, or the installed uvicorn is not
            supported.
    """
    logs.configure(settings.log_format)
    require_supported_uvicorn()
    _raise_file_limit(settings)
    require_keys(settings, host)
    if settings.keys is not None:
        read_keys(settings.keys)  # report errors before processes start; so do the next two calls
    open_store(settings)
    check_backend(settings.backend)
    _check_repository(settings)
    operations_port = choose_operations_port(settings, host, port)
    listeners = [_bind(host, port, "--port")]
    console = "" if operations_port is not None else ", console at /console"
    log.info("serving on %s, documentation at /docs%s", _url(listeners[0]), console)
    if operations_port is not None:
        listeners.append(_bind(host, operations_port, "--operations-port"))
        operations_port = listeners[1].getsockname()[1]
        log.info("serving metrics and admin operations on %s, console at /console", _url(listeners[1]))
    options: dict[str, Any] = {
        "http": LimitedHttpProtocol,
        "ws": "none",
        "log_config": None,
        "access_log": False,  # metrics count requests
        "proxy_headers": False,  # clients cannot set the address in traces
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
        ConfigError: the configured port is that of the service.
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
        ConfigError: other machines can reach the service, and neither ``keys`` nor ``no_keys`` is set.
    """
    if settings.keys is None and not settings.no_keys and not is_loopback(host):
        raise ConfigError(
            f"other machines can reach {host}, and there are no API keys: make one with 'ranker keys new FILE --name "
            "NAME --scopes rank' and serve with --keys FILE, or pass --no-keys if access is restricted by other means"
        )


def _serve_in_this_process(
    settings: Settings, operations_port: int | None, listeners: list[socket.socket], options: dict[str, Any]
) -> None:
    app = _create_process_app(settings, operations_port)
    GracefulServer(uvicorn.Config(app, **options), settings.drain_seconds).run(listeners)


def _serve_with_workers(
    settings: Settings, operations_port: int | None, listeners: list[socket.socket], options: dict[str, Any]
) -> None:
    answers = AnsweredRequests.from_settings(settings)
    factory = partial(_create_worker_app, settings, operations_port, answers)
    config = uvicorn.Config(factory, factory=True, workers=settings.workers, **options)
    with shared_metrics() as folder:
        supervisor = Supervisor(config, listeners, settings, folder)
        supervisor.run()
    if supervisor.failure is not None:
        raise RankerError(supervisor.failure)


def _create_worker_app(
    settings: Settings, operations_port: int | None, answers: AnsweredRequests | None, *, beside_others: bool
) -> ASGIApp:
    try:
        return _create_process_app(
            settings, operations_port, answers, await_models="success" if beside_others else "attempt"
        )
    except RankerError as error:
        log.error("%s", error)
        sys.exit(STARTUP_FAILURE)


def _create_process_app(
    settings: Settings,
    operations_port: int | None,
    answers: AnsweredRequests | None = None,
    *,
    await_models: Literal["attempt", "success"] | None = None,
) -> ASGIApp:
    """Configure this process and create its application; see ``create_app`` for the arguments."""
    logs.configure(settings.log_format)
    sys.setswitchinterval(SWITCH_SECONDS)
    app = create_app(settings, operations_port, answers, load_in_background=True, await_models=await_models)
    gc.collect()
    gc.freeze()  # traversing these objects in each collection would delay requests; the reconciler freezes models, too
    return app


def _check_repository(settings: Settings) -> None:
    """Check the repository, but do not wait for a filesystem that hangs: the service starts and keeps trying.

    Raises:
        BundleError: see ``check_repository``.
    """
    try:
        BoundedCalls(CHECK_SECONDS, max_calls=1).call(lambda: check_repository(settings))
    except TimeoutError:
        where = settings.remote or settings.repository
        log.error("%s does not respond: the service becomes ready when it does", where)


def _raise_file_limit(settings: Settings) -> None:
    """Raise the limit on open files to what ``max_connections`` needs; 1,024 is a common default.

    Raises:
        RankerError: the system allows fewer.
    """
    files = settings.max_connections + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        connections = hard - OTHER_FILES
        other_fix = (
            f", or lower max_connections to at most {connections}"
            if connections > 0
            else f"; even with max_connections = 1 it must be at least {OTHER_FILES + 1}"
        )
        raise RankerError(
            f"max_connections = {settings.max_connections} needs {files} open files, but a process may have {hard}: "
            f"raise the limit with 'ulimit -n {files}' (a container: --ulimit nofile={files}){other_fix}"
        )
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


def _bind(host: str, port: int, option: str) -> socket.socket:
    """Return a socket that is bound to an address but does not listen yet.

    Raises:
        RankerError: the address cannot be bound; names the option to change.
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


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
