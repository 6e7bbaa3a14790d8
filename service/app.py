"""Wires the service together; nothing is decided here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from service import problems
from service.api.administration import repository_routes
from service.api.document import describe
from service.api.routes import operations_routes, ranking_routes
from service.engine.engine import Engine
from service.metrics import Metrics
from service.middleware import Envelope
from service.settings import Settings
from service.versions.models import Models
from service.versions.reconciling import Reconciler
from service.versions.shadowing import Shadows
from service.versions.start import Start
from service.versions.watching import Watcher


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
    models, metrics = Models(settings.default_model, start), Metrics()
    reconciler = Reconciler(settings, models, metrics)
    if give_up is None:
        reconciler.first()
    engine = Engine(settings.max_batch_rows)
    shadows = Shadows(engine, metrics)
    watcher = Watcher(reconciler, settings.poll_seconds, give_up)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watcher.start()
        yield
        watcher.stop()
        await shadows.close()
        engine.close()

    app = FastAPI(title="DSelect Ranker", version="1", lifespan=lifespan)
    app.add_middleware(
        Envelope, metrics=metrics, max_body_bytes=settings.max_body_bytes, server_timing=settings.server_timing
    )
    problems.install(app)
    app.include_router(ranking_routes(settings, models, engine, shadows, metrics))
    app.include_router(repository_routes(settings, models, reconciler))
    app.include_router(operations_routes(models, metrics))
    describe(app)
    return app
