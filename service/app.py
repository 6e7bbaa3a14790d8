"""Wires the service together; nothing is decided here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.types import ASGIApp

from service.engine.admission import Admission
from service.engine.engine import Engine
from service.feature_store.open import open_feature_store
from service.feedback.writer import FeedbackWriter
from service.http.admin import repository_routes
from service.http.admission_middleware import AdmissionMiddleware
from service.http.auth.guard import ApiKeyMiddleware
from service.http.auth.keyring import Keyring
from service.http.errors import install_error_handlers
from service.http.feedback import feedback_routes
from service.http.middleware import RequestContextMiddleware
from service.http.openapi import describe
from service.http.port_router import PortRouter
from service.http.routes import health_routes, metrics_routes, model_routes, ranking_routes
from service.models.reconciler import Reconciler
from service.models.registry import ModelRegistry
from service.models.shadow import ShadowScorer
from service.models.startup_barrier import StartupBarrier
from service.models.watcher import Watcher
from service.protocol.lifecycle import Lifecycle
from service.server.context import ServerContext
from service.settings import Settings
from service.telemetry import tracing
from service.telemetry.metrics import Metrics
from service.telemetry.request_telemetry import RequestTelemetry

NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's own would tell all of it a second time, and what is in wrong requests."""
UNUSED: dict[str, Any] = {"redoc_url": None, "swagger_ui_oauth2_redirect_url": None, "redirect_slashes": False}
"""Of FastAPI: one page of documentation is enough, and a path is what it is."""


def create_app(
    settings: Settings,
    operations_port: int | None = None,
    give_up: Callable[[Exception], None] | None = None,
    start: StartupBarrier | None = None,
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
    feedback = FeedbackWriter.from_settings(settings)
    models, metrics, traces = ModelRegistry(settings.default_model, start), Metrics(), tracing.from_environment()
    reconciler = Reconciler(settings, models, metrics)
    if give_up is None:
        reconciler.first()
    feature_store = open_feature_store(settings, metrics)
    deadlines = settings.default_deadline_ms, settings.max_deadline_ms
    engine = Engine(settings.max_batch_rows, metrics, feature_store, *deadlines)
    admission, lifecycle = Admission(settings.max_queue_rows, settings.max_queue_requests), Lifecycle()
    entrance = ServerContext(settings, admission, lifecycle, metrics)
    shadows = ShadowScorer(engine, metrics)
    watcher = Watcher(reconciler, settings.poll_seconds, give_up)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        watcher.start()
        yield {"entrance": entrance}
        watcher.stop()
        await shadows.close()
        engine.close()
        if feature_store is not None:
            await feature_store.close()
        if feedback is not None:
            feedback.close()
        if traces is not None:
            traces.close()

    def app(*routers: APIRouter) -> FastAPI:
        made = FastAPI(title="DSelect Ranker", version="1", lifespan=lifespan, telemetry=NO_TELEMETRY, **UNUSED)
        made.add_middleware(AdmissionMiddleware, admission=admission)
        if keyring is not None:
            made.add_middleware(ApiKeyMiddleware, keyring=keyring)
        made.add_middleware(
            RequestContextMiddleware,
            observer=observer,
            max_body_bytes=settings.max_body_bytes,
            read_seconds=settings.read_seconds,
            server_timing=settings.server_timing,
        )
        install_error_handlers(made)
        for router in (*routers, health_routes(models, lifecycle)):
            made.router.routes.extend(router.routes)  # an included router would match each request twice
        describe(made, guarded=keyring is not None)
        return made

    observer = RequestTelemetry(metrics, settings.slow_ms, traces)
    main = [
        ranking_routes(settings, models, engine, shadows),
        model_routes(models),
        feedback_routes(settings, feedback),
    ]
    operations = [metrics_routes(metrics), repository_routes(settings, models, reconciler)]
    if operations_port is None:
        return app(*main, *operations)
    return PortRouter(app(*main), app(*operations), operations_port)
