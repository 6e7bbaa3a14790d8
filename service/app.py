"""Creates the application and connects its components."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import APIRouter, FastAPI
from fastapi.telemetry import TelemetryConfig
from starlette.types import ASGIApp, Receive, Scope, Send

from service.engine.admission import Admission
from service.engine.engine import Engine
from service.feature_store.lookup import StoreLookup
from service.http.admin import repository_routes
from service.http.answer_recorder import AnswerRecorder
from service.http.auth.guard import ApiKeyGuard
from service.http.auth.keys import Keyring
from service.http.console import console_routes
from service.http.console_pages import console_pages
from service.http.docs import docs_routes
from service.http.errors import install_error_handlers
from service.http.feedback import feedback_routes
from service.http.gateway import Gateway
from service.http.index import OPERATIONS_LINKS, SERVICE_LINKS, index_routes, model_list_routes
from service.http.open_inference.handler import InferHandler
from service.http.open_inference.routes import open_inference_routes
from service.http.openapi import customize_openapi
from service.http.rank_handler import RankHandler
from service.http.routes import health_routes, metrics_routes, ranking_routes
from service.logs.answered_requests import AnsweredRequests
from service.logs.feedback_checks import FeedbackChecks
from service.logs.feedback_log import FeedbackLog
from service.logs.served_log import ServedLog
from service.models.reconciler import Reconciler
from service.models.registry import ModelRegistry
from service.models.shadow import ShadowScorer
from service.models.watcher import Watcher
from service.server.context import STATE_KEY, Lifecycle, ServerContext
from service.settings import Settings
from service.telemetry import tracing
from service.telemetry.metrics import Metrics
from service.telemetry.request_telemetry import RequestTelemetry

NO_TELEMETRY: TelemetryConfig = {"tracing": False, "metrics": False, "logs": False}
"""FastAPI's telemetry is disabled: it would repeat that of the service and include the values of invalid requests."""
ATTEMPT_SECONDS = 60.0
"""Seconds for which a process waits for the first attempt to load the models: it must be live before it is killed."""
TITLE = "DSelect Ranker"
DISABLED: dict[str, Any] = {
    "docs_url": None,
    "redoc_url": None,
    "swagger_ui_oauth2_redirect_url": None,
    "redirect_slashes": False,
}
"""Features of FastAPI that are not used: pages that load scripts from other hosts, OAuth2, redirects to other paths."""


def create_app(
    settings: Settings,
    operations_port: int | None = None,
    answers: AnsweredRequests | None = None,
    *,
    load_in_background: bool = False,
    await_models: Literal["attempt", "success"] | None = None,
) -> ASGIApp:
    """Create the service as an ASGI application.

    Args:
        settings: settings of the service.
        operations_port: the only port of metrics and admin operations; None: all operations are on every port.
        answers: memory of answers that the worker processes share, if there are several and they collect feedback.
        load_in_background: whether models are loaded after the function returns, while the application is not ready.
            The application then also waits for a model that can be served.
        await_models: with ``load_in_background``: accept connections only after the first attempt to load the models,
            for which the application waits at most ``ATTEMPT_SECONDS``; or after a model was loaded, because other
            processes answer meanwhile.

    Raises:
        BundleError: no model can be served, and models are not loaded in the background; names the bundle and the
            reason.
        ConfigError: the key file cannot be read, or the store's address is not valid.
        OutputError: the folder of feedback or of the served log is not writable.
    """
    guard = ApiKeyGuard(Keyring(settings.keys)) if settings.keys else None
    models, metrics, tracer = ModelRegistry(settings.default_model), Metrics(), tracing.from_environment()
    feedback_log = FeedbackLog.from_settings(settings, metrics)
    served_log = ServedLog.from_settings(settings, metrics)
    if answers is None:
        answers = AnsweredRequests.from_settings(settings)
    if answers is not None:
        answers.claim()
    checks = FeedbackChecks(models, answers, settings.feedback_reject)
    reconciler = Reconciler(settings, models, metrics)
    if not load_in_background:
        reconciler.load_initial()
    feature_store = StoreLookup.from_settings(settings, metrics)
    batch_tracer = None if tracer is None else tracer.batches
    engine = Engine(
        settings.max_batch_rows,
        metrics,
        feature_store,
        settings.max_deadline_ms,
        batch_tracer,
        traced=served_log is not None,
    )
    admission, lifecycle = Admission(settings.max_queue_rows, settings.max_queue_requests), Lifecycle()
    context = ServerContext(settings, admission, lifecycle, metrics)
    shadows = ShadowScorer(engine, metrics)
    watcher = Watcher(reconciler, settings.poll_seconds)
    telemetry = RequestTelemetry(metrics, settings.slow_ms, tracer)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        watcher.start()
        if await_models == "attempt":
            await asyncio.to_thread(watcher.first_poll.wait, ATTEMPT_SECONDS)
        while await_models == "success" and not models.ready:
            await asyncio.sleep(0.05)
        watch = asyncio.create_task(engine.watch())
        yield {STATE_KEY: context}
        watch.cancel()
        await shadows.close()
        engine.close()
        if feature_store is not None:
            await feature_store.close()
        writers = [part for part in (feedback_log, served_log, tracer) if part is not None]
        # At the same time, because each may wait for a destination that does not respond.
        await asyncio.gather(*(asyncio.to_thread(close) for close in (watcher.stop, *(part.close for part in writers))))

    def build(*routers: APIRouter) -> Gateway:
        app = FastAPI(title=TITLE, version="1", lifespan=lifespan, telemetry=NO_TELEMETRY, **DISABLED)
        install_error_handlers(app)
        for router in (*routers, health_routes(models, lifecycle), docs_routes(TITLE)):
            app.router.routes.extend(router.routes)  # include_router would match each request twice
        customize_openapi(app, requires_keys=guard is not None)
        return Gateway(app, context, telemetry, guard)

    recorder = AnswerRecorder(shadows, answers, served_log)
    handler = RankHandler(settings, engine, recorder)
    infer_handler = InferHandler(settings, engine, recorder)
    main = [
        ranking_routes(handler, models),
        model_list_routes(models),
        open_inference_routes(infer_handler, models),
        feedback_routes(settings, feedback_log, checks, metrics),
    ]
    operations = [
        metrics_routes(metrics),
        repository_routes(settings, models, reconciler),
        *console_routes(settings, models, reconciler, handler),
        console_pages(),
    ]
    if operations_port is None:
        return build(index_routes(SERVICE_LINKS | OPERATIONS_LINKS), *main, *operations)
    return PortRouter(
        build(index_routes(SERVICE_LINKS, operations_port), *main),
        build(index_routes(OPERATIONS_LINKS), *operations),
        operations_port,
    )


class PortRouter:
    """Passes each request to the application of the port on which it arrived.

    Args:
        main: application of all ports but one; it also receives the lifespan events.
        operations: application of the operations port.
        port: the operations port.
    """

    def __init__(self, main: ASGIApp, operations: ASGIApp, port: int) -> None:
        self._main, self._operations, self._port = main, operations, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or the lifespan."""
        is_operation = scope["type"] != "lifespan" and scope["server"][1] == self._port
        await (self._operations if is_operation else self._main)(scope, receive, send)
