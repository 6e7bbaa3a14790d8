"""The operations for ranking, health and metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from service.http.openapi import RANKING, RawRoute, documented
from service.http.rank_handler import RankHandler
from service.models.registry import LOADING, ModelRegistry, ModelRouting, ModelUnavailableError
from service.protocol.problems import unavailable
from service.server.context import Lifecycle
from service.telemetry.metrics import Metrics


def ranking_routes(handler: RankHandler, models: ModelRegistry) -> APIRouter:
    """``POST …/rank`` for the default model, a model, and a version of a model."""
    router = APIRouter(tags=["ranking"], route_class=RawRoute)

    @router.post("/v1/rank", **RANKING)
    async def rank(http: Request) -> Response:
        """Rank candidates with the default model."""
        return await handler.respond(http, models.get())

    @router.post("/v1/models/{model}/rank", **RANKING)
    async def rank_with_model(http: Request, model: str) -> Response:
        """Rank candidates with the current version of a model, or its canary."""
        return await handler.respond(http, models.get(model))

    @router.post("/v1/models/{model}/versions/{version}/rank", **RANKING)
    async def rank_with_version(http: Request, model: str, version: str) -> Response:
        """Rank candidates with a loaded version of a model: current, canary or shadow."""
        return await handler.respond(http, ModelRouting(models.get_version(model, version)))

    return router


def health_routes(models: ModelRegistry, lifecycle: Lifecycle) -> APIRouter:
    """Liveness and readiness of the process, with the names of the Open Inference Protocol."""
    router = APIRouter(tags=["health"])

    @router.get("/v2/health/live")
    async def live() -> dict[str, bool]:
        """Return 200 while the process responds."""
        return {"live": True}

    @router.get("/v2/health/ready", responses=documented(503))
    async def ready() -> dict[str, bool]:
        """Return 200 if the models are loaded, verified and warm, and the process does not drain."""
        if lifecycle.draining:
            raise unavailable("this process is about to end")
        if not models.ready:
            raise ModelUnavailableError(LOADING)
        return {"ready": True}

    return router


def metrics_routes(metrics: Metrics) -> APIRouter:
    """``GET /metrics`` for Prometheus."""
    router = APIRouter(tags=["operations"])

    @router.get("/metrics", response_class=PlainTextResponse)
    async def exposition() -> Response:
        """Return the metrics in the format of Prometheus."""
        return Response(metrics.exposition(), media_type=metrics.content_type)

    return router
