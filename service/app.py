"""Creates the application and connects its components."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.types import ASGIApp

from service.engine.admission import Admission
from service.engine.engine import Engine
from service.feature_store.lookup import StoreLookup
from service.feedback.writer import FeedbackWriter
from service.http.admin import repository_routes
from service.http.auth.keys import Keyring
from service.http.auth.middleware import ApiKeyMiddleware
from service.http.errors import install_error_handlers
from service.http.middleware import AdmissionMiddleware, PortRouter, RequestContextMiddleware
from service.http.openapi import customize_openapi
from service.http.routes import feedback_routes, health_routes, metrics_routes, model_routes, ranking_routes
from service.models.reconciler import Reconciler, Watcher
from service.models.registry import ModelRegistry, StartupBarrier
from service.models.shadow import ShadowScorer
from service.server.context import STATE_KEY, Lifecycle, ServerContext
from service.settings import Settings
from service.telemetry import tracing
from service.telemetry.metrics import Metrics
from service.telemetry.request_telemetry import RequestTelemetry

NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's telemetry is disabled: it would repeat that of the service and include the values of invalid requests."""
DISABLED: dict[str, Any] = {"redoc_url": None, "swagger_ui_oauth2_redirect_url": None, "redirect_slashes": False}
"""Features of FastAPI that are not used: a second documentation page, OAuth2, and redirects to other paths."""


def create_app(
    settings: Settings,
    operations_port: int | None = None,
    on_startup_failure: Callable[[Exception], None] | None = None,
    barrier: StartupBarrier | None = None,
) -> ASGIApp:
    """Create the service as an ASGI application.

    Args:
        settings: Settings of the service.
        operations_port: The only port of metrics and admin operations; None: all operations are on every port.
        on_startup_failure: If set, models are loaded in the background while the application is not ready. It is
            called from another thread if no model can be served. If None, models are loaded before the function
            returns.
        barrier: Barrier of the worker processes, if there are several.

    Raises:
        BundleError: No model can be served; names the bundle and the reason.
        ConfigError: The key file cannot be read, or the store's address is not valid.
        OutputError: The feedback folder is not writable.
    """
    keyring = Keyring(settings.keys) if settings.keys else None
    writer = FeedbackWriter.from_settings(settings)
    models, metrics, tracer = ModelRegistry(settings.default_model, barrier), Metrics(), tracing.from_environment()
    reconciler = Reconciler(settings, models, metrics)
    if on_startup_failure is None:
        reconciler.load_initial()
    feature_store = StoreLookup.from_settings(settings, metrics)
    deadlines = settings.default_deadline_ms, settings.max_deadline_ms
    engine = Engine(settings.max_batch_rows, metrics, feature_store, *deadlines)
    admission, lifecycle = Admission(settings.max_queue_rows, settings.max_queue_requests), Lifecycle()
    context = ServerContext(settings, admission, lifecycle, metrics)
    shadows = ShadowScorer(engine, metrics)
    watcher = Watcher(reconciler, settings.poll_seconds, on_startup_failure)
    telemetry = RequestTelemetry(metrics, settings.slow_ms, tracer)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        watcher.start()
        yield {STATE_KEY: context}
        watcher.stop()
        await shadows.close()
        engine.close()
        if feature_store is not None:
            await feature_store.close()
        if writer is not None:
            writer.close()
        if tracer is not None:
            tracer.close()

    def build(*routers: APIRouter) -> FastAPI:
        app = FastAPI(title="DSelect Ranker", version="1", lifespan=lifespan, telemetry=NO_TELEMETRY, **DISABLED)
        app.add_middleware(AdmissionMiddleware, context=context)
        if keyring is not None:
            app.add_middleware(ApiKeyMiddleware, keyring=keyring)
        app.add_middleware(
            RequestContextMiddleware,
            telemetry=telemetry,
            max_body_bytes=settings.max_body_bytes,
            read_seconds=settings.read_seconds,
            server_timing=settings.server_timing,
        )
        install_error_handlers(app)
        for router in (*routers, health_routes(models, lifecycle)):
            app.router.routes.extend(router.routes)  # include_router would match each request twice
        customize_openapi(app, requires_keys=keyring is not None)
        return app

    main = [ranking_routes(settings, models, engine, shadows), model_routes(models), feedback_routes(settings, writer)]
    operations = [metrics_routes(metrics), repository_routes(settings, models, reconciler)]
    if operations_port is None:
        return build(*main, *operations)
    return PortRouter(build(*main), build(*operations), operations_port)
