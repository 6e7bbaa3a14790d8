"""Wires the service together; nothing is decided here."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from ranking.errors import RankerError
from service import problems
from service.api.routes import operations_routes, ranking_routes
from service.engine.engine import Engine
from service.metrics import Metrics
from service.middleware import Envelope
from service.repository import Repository
from service.settings import Settings

log = logging.getLogger("ranker.service")


def create_app(settings: Settings) -> FastAPI:
    """The service as an ASGI application, its models loaded and verified.

    Raises:
        BundleError: nothing can be served; says which bundle and why.
    """
    repository, metrics = Repository(settings.repository, settings.default_model), Metrics()
    engine = Engine(settings.max_batch_rows)
    for served in repository:
        metrics.loaded(served)
        log.info("serving %s version %s, loaded in %.2f s", served.name, served.version, served.load_seconds)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        engine.close()

    app = FastAPI(title="DSelect Ranker", version="1", lifespan=lifespan)
    app.add_middleware(Envelope, metrics=metrics, max_body_bytes=settings.max_body_bytes)
    problems.install(app)
    app.include_router(ranking_routes(settings, repository, engine, metrics))
    app.include_router(operations_routes(repository, metrics))
    return app


def serve(settings: Settings, host: str, port: int) -> None:
    """Serves until the process is told to stop.

    Raises:
        BundleError: nothing can be served.
        RankerError: the address cannot be listened on.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    app = create_app(settings)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        why = str(error.strerror).partition(" (while")[0]  # the rest repeats the address
        raise RankerError(f"{host}:{port} cannot be listened on ({why}); choose another --port or --host") from None
    uvicorn.Server(uvicorn.Config(app, log_config=None)).run(sockets=[listener])
