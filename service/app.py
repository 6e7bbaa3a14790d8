"""Wires the service together; nothing is decided here."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.types import ASGIApp

from service import problems, tracing
from service.admitting import Admitting
from service.api.document import describe
from service.api.feedback import feedback_routes
from service.api.routes import health_routes, metrics_routes, model_routes, ranking_routes
from service.engine.admission import Admission
from service.engine.engine import Engine
from service.entrance import Entrance
from service.feedback.writer import FeedbackWriter
from service.lifecycle import Lifecycle
from service.metrics import Metrics
from service.middleware import Envelope
from service.observer import Observer
from service.ports import Ports
from service.repository import Repository
from service.security.guard import Guard
from service.security.keyring import Keyring
from service.settings import Settings

log = logging.getLogger("ranker.service")

NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's own would tell all of it a second time, and what is in wrong requests."""
UNUSED: dict[str, Any] = {"redoc_url": None, "swagger_ui_oauth2_redirect_url": None, "redirect_slashes": False}
"""Of FastAPI: one page of documentation is enough, and a path is what it is."""


def create_app(settings: Settings, operations_port: int | None = None) -> ASGIApp:
    """The service as an ASGI application, its models loaded and verified.

    Args:
        settings: of the service.
        operations_port: where alone metrics and admin operations are; None: where everything is.

    Raises:
        BundleError: nothing can be served; says which bundle and why.
        ConfigError: the key file cannot be read.
        OutputError: the folder of feedback cannot be written.
    """
    keyring = Keyring(settings.keys) if settings.keys else None
    feedback = FeedbackWriter.of(settings)
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
        if feedback is not None:
            feedback.close()
        if traces is not None:
            traces.close()

    def app(*routers: APIRouter) -> FastAPI:
        made = FastAPI(title="DSelect Ranker", version="1", lifespan=lifespan, telemetry=NO_TELEMETRY, **UNUSED)
        made.add_middleware(Admitting, admission=admission)
        if keyring is not None:
            made.add_middleware(Guard, keyring=keyring)
        made.add_middleware(
            Envelope,
            observer=observer,
            max_body_bytes=settings.max_body_bytes,
            read_seconds=settings.read_seconds,
            server_timing=settings.server_timing,
        )
        problems.install(made)
        for router in (*routers, health_routes(lifecycle)):
            made.router.routes.extend(router.routes)  # an included router would match each request twice
        describe(made, guarded=keyring is not None)
        return made

    observer = Observer(metrics, settings.slow_ms, traces)
    main = [
        ranking_routes(settings, repository, engine),
        model_routes(repository),
        feedback_routes(settings, feedback),
    ]
    operations = [metrics_routes(metrics)]
    if operations_port is None:
        return app(*main, *operations)
    return Ports(app(*main), app(*operations), operations_port)
