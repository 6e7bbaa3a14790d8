"""Wires the service together; nothing is decided here."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig

from service import problems, tracing
from service.admitting import Admitting
from service.api.document import describe
from service.api.routes import operations_routes, ranking_routes
from service.engine.admission import Admission
from service.engine.engine import Engine
from service.entrance import Entrance
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.middleware import Envelope
from service.observer import Observer
from service.repository import Repository
from service.settings import Settings

log = logging.getLogger("ranker.service")

NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's own would tell all of it a second time, and what is in wrong requests."""


def create_app(settings: Settings) -> FastAPI:
    """The service as an ASGI application, its models loaded and verified.

    Raises:
        BundleError: nothing can be served; says which bundle and why.
    """
    repository, metrics, traces = Repository(settings), Metrics(), tracing.from_environment()
    engine = Engine(settings.max_batch_rows, metrics, settings.default_deadline_ms, settings.max_deadline_ms)
    admission, lifecycle = Admission(settings.max_queue_rows, settings.max_queue_requests), Lifecycle()
    entrance = Entrance(settings, admission, lifecycle, metrics)
    for served in repository:
        metrics.loaded(served)
        backend, seconds = served.runtime.backend, served.load_seconds
        log.info("serving %s version %s on %s, loaded in %.2f s", served.name, served.version, backend, seconds)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        yield {"entrance": entrance}
        engine.close()
        if traces is not None:
            traces.close()

    app = FastAPI(title="DSelect Ranker", version="1", lifespan=lifespan, telemetry=NO_TELEMETRY)
    app.add_middleware(Admitting, admission=admission)
    app.add_middleware(
        Envelope,
        observer=Observer(metrics, settings.slow_ms, traces),
        max_body_bytes=settings.max_body_bytes,
        read_seconds=settings.read_seconds,
        server_timing=settings.server_timing,
    )
    problems.install(app)
    operations = operations_routes(repository, metrics, lifecycle)
    for router in (ranking_routes(settings, repository, engine), operations):
        app.router.routes.extend(router.routes)  # an included router would match each request twice
    describe(app)
    return app
