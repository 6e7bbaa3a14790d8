"""Wires the service together; nothing is decided here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.telemetry import TelemetryConfig

from service import problems, tracing
from service.api.administration import repository_routes
from service.api.document import describe
from service.api.routes import operations_routes, ranking_routes
from service.engine.engine import Engine
from service.metrics import Metrics
from service.middleware import Envelope
from service.observer import Observer
from service.settings import Settings
from service.versions.models import Models
from service.versions.reconciling import Reconciler
from service.versions.shadowing import Shadows
from service.versions.start import Start
from service.versions.watching import Watcher

NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's own would tell all of it a second time, and what is in wrong requests."""


def create_app(
    settings: Settings, give_up: Callable[[Exception], None] | None = None, start: Start | None = None
) -> FastAPI:
    """The service as an ASGI application.

    Args:
        settings: of the service.
        give_up: if it is given, models are loaded in the background while the application answers that it is not
            ready; called, from another thread, if there is nothing to serve. Else they are loaded first.
        start: of the processes of the service, if there are several.

    Raises:
        BundleError: nothing can be served; says which bundle and why.
    """
    models, metrics, traces = Models(settings.default_model, start), Metrics(), tracing.from_environment()
    reconciler = Reconciler(settings, models, metrics)
    if give_up is None:
        reconciler.first()
    engine = Engine(settings.max_batch_rows, metrics)
    shadows = Shadows(engine, metrics)
    watcher = Watcher(reconciler, settings.poll_seconds, give_up)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watcher.start()
        yield
        watcher.stop()
        await shadows.close()
        engine.close()
        if traces is not None:
            traces.close()

    app = FastAPI(title="DSelect Ranker", version="1", lifespan=lifespan, telemetry=NO_TELEMETRY)
    app.add_middleware(
        Envelope,
        observer=Observer(metrics, settings.slow_ms, traces),
        max_body_bytes=settings.max_body_bytes,
        server_timing=settings.server_timing,
    )
    problems.install(app)
    for router in (
        ranking_routes(settings, models, engine, shadows),
        repository_routes(settings, models, reconciler),
        operations_routes(models, metrics),
    ):
        app.router.routes.extend(router.routes)  # an included router would match each request twice
    describe(app)
    return app
