"""Wires the service together; nothing is decided here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.types import ASGIApp

from service import problems
from service.api.administration import repository_routes
from service.api.document import describe
from service.api.feedback import feedback_routes
from service.api.routes import health_routes, metrics_routes, model_routes, ranking_routes
from service.engine.admission import Admission
from service.engine.engine import Engine
from service.feedback.writer import FeedbackWriter
from service.middleware import Envelope
from service.security.guard import Guard
from service.security.keyring import Keyring
from service.server.admitting import Admitting
from service.server.entrance import Entrance
from service.server.lifecycle import Lifecycle
from service.server.ports import Ports
from service.settings import Settings
from service.store.opening import open_lookup
from service.telemetry import tracing
from service.telemetry.metrics import Metrics
from service.telemetry.observer import Observer
from service.versions.models import Models
from service.versions.reconciling import Reconciler
from service.versions.shadowing import Shadows
from service.versions.start import Start
from service.versions.watching import Watcher

NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's own would tell all of it a second time, and what is in wrong requests."""
UNUSED: dict[str, Any] = {"redoc_url": None, "swagger_ui_oauth2_redirect_url": None, "redirect_slashes": False}
"""Of FastAPI: one page of documentation is enough, and a path is what it is."""


def create_app(
    settings: Settings,
    operations_port: int | None = None,
    give_up: Callable[[Exception], None] | None = None,
    start: Start | None = None,
) -> ASGIApp:
    """The service as an ASGI application.

    Args:
        settings: of the service.
        operations_port: where alone metrics and admin operations are; None: where everything is.
        give_up: if it is given, models are loaded in the background while the application answers that it is not
            ready; called, from another thread, if there is nothing to serve. Else they are loaded first.
        start: of the processes of the service, if there are several.

    Raises:
        BundleError: nothing can be served; says which bundle and why.
        ConfigError: the key file cannot be read, or the store's address means nothing.
        OutputError: the folder of feedback cannot be written.
    """
    keyring = Keyring(settings.keys) if settings.keys else None
    feedback = FeedbackWriter.of(settings)
    models, metrics, traces = Models(settings.default_model, start), Metrics(), tracing.from_environment()
    reconciler = Reconciler(settings, models, metrics)
    if give_up is None:
        reconciler.first()
    lookup = open_lookup(settings, metrics)
    deadlines = settings.default_deadline_ms, settings.max_deadline_ms
    engine = Engine(settings.max_batch_rows, metrics, lookup, *deadlines)
    admission, lifecycle = Admission(settings.max_queue_rows, settings.max_queue_requests), Lifecycle()
    entrance = Entrance(settings, admission, lifecycle, metrics)
    shadows = Shadows(engine, metrics)
    watcher = Watcher(reconciler, settings.poll_seconds, give_up)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        watcher.start()
        yield {"entrance": entrance}
        watcher.stop()
        await shadows.close()
        engine.close()
        if lookup is not None:
            await lookup.close()
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
        for router in (*routers, health_routes(models, lifecycle)):
            made.router.routes.extend(router.routes)  # an included router would match each request twice
        describe(made, guarded=keyring is not None)
        return made

    observer = Observer(metrics, settings.slow_ms, traces)
    main = [
        ranking_routes(settings, models, engine, shadows),
        model_routes(models),
        feedback_routes(settings, feedback),
    ]
    operations = [metrics_routes(metrics), repository_routes(settings, models, reconciler)]
    if operations_port is None:
        return app(*main, *operations)
    return Ports(app(*main), app(*operations), operations_port)
