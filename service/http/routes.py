"""The HTTP operations; each finds a model, calls the engine and writes the answer."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from service.engine.admission import Permit
from service.engine.engine import Engine
from service.engine.model import LoadedModel
from service.engine.response import RankResult
from service.http.decode import read
from service.http.disconnect import cancel_on_disconnect
from service.http.encode import write
from service.http.media_types import ARROW, answer_format, body_format
from service.http.openapi import RANKING, documented
from service.http.raw_route import RawRoute
from service.models.registry import LOADING, ModelRegistry, ModelUnavailableError
from service.models.routing import ModelRouting
from service.models.shadow import ShadowRequest, ShadowScorer
from service.protocol.lifecycle import Lifecycle
from service.protocol.messages import ModelMetadata, RankOptions
from service.protocol.problems import unavailable
from service.settings import Settings
from service.telemetry.metrics import Metrics
from service.telemetry.request_telemetry import RequestInfo
from service.telemetry.stage_timer import StageTimer


def ranking_routes(settings: Settings, models: ModelRegistry, engine: Engine, shadows: ShadowScorer) -> APIRouter:
    """``POST …/rank``: the default model, a named one, or a named version."""
    router = APIRouter(tags=["ranking"], route_class=RawRoute)

    async def answer(http: Request, lineup: ModelRouting) -> Response:
        served = lineup.current
        stages: StageTimer = http.state.timer
        http.state.request_info = request_info = RequestInfo(served.name, served.version)
        form = answer_format(http.headers.get("accept", ""))
        given = body_format(http.headers.get("content-type", ""))
        asked = read(await http.body(), given, served, settings)
        if lineup.canary is not None:
            served = lineup.choose(asked.options.user.id, asked.options.request_id or http.state.request_id)
            request_info.version = served.version
            if served is lineup.canary and given == ARROW:  # a stream has the columns of its version
                asked = read(await http.body(), given, served, settings)
        request_info.candidates, request_info.tasks = len(asked.candidates), asked.options.tasks
        permit: Permit = http.state.ticket
        permit.count(len(asked.candidates))
        with cancel_on_disconnect(permit):
            ranked = await engine.rank(served, asked, stages)
        rest = summary(ranked, served, asked.options, http.state.request_id)
        body = write(ranked, rest, form, columns=asked.options.layout == "columns")
        stages.end("write")
        if lineup.shadow is not None and lineup.shadow is not served:
            shadows.offer(ShadowRequest(lineup.shadow, asked, ranked, served.version))
        return Response(body, media_type=form)

    @router.post("/v1/rank", **RANKING)
    async def rank(http: Request) -> Response:
        """Ranks candidates with the default model."""
        return await answer(http, models.get())

    @router.post("/v1/models/{model}/rank", **RANKING)
    async def rank_with_model(http: Request, model: str) -> Response:
        """Ranks candidates with the current version of a model, or its canary."""
        return await answer(http, models.get(model))

    @router.post("/v1/models/{model}/versions/{version}/rank", **RANKING)
    async def rank_with_version(http: Request, model: str, version: str) -> Response:
        """Ranks candidates with a version of a model that is loaded: current, canary or shadow."""
        return await answer(http, ModelRouting(models.get_version(model, version)))

    return router


def health_routes(models: ModelRegistry, lifecycle: Lifecycle) -> APIRouter:
    """Health by the Open Inference Protocol's names."""
    router = APIRouter(tags=["health"])

    @router.get("/v2/health/live")
    async def live() -> dict[str, bool]:
        """The process answers."""
        return {"live": True}

    @router.get("/v2/health/ready", responses=documented(503))
    async def ready() -> dict[str, bool]:
        """Models are loaded, verified and warm, and requests are welcome."""
        if lifecycle.draining:
            raise unavailable("this process is about to end")
        if not models.ready:
            raise ModelUnavailableError(LOADING)
        return {"ready": True}

    return router


def model_routes(models: ModelRegistry) -> APIRouter:
    """Metadata by the Open Inference Protocol's names."""
    router = APIRouter(tags=["models"])

    @router.get("/v2/models/{model}", response_model=ModelMetadata, responses=documented(404, 503))
    async def metadata(model: str) -> ModelMetadata:
        """What a model reads and predicts."""
        return model_metadata(models.get(model))

    @router.get("/v2/models/{model}/ready", responses=documented(404, 503))
    async def model_ready(model: str) -> dict[str, bool | str]:
        """Whether a model is being served, and which version is current."""
        served = models.get(model).current
        return {"name": served.name, "version": served.version, "ready": True}

    return router


def metrics_routes(metrics: Metrics) -> APIRouter:
    """What Prometheus reads."""
    router = APIRouter(tags=["operations"])

    @router.get("/metrics", response_class=PlainTextResponse)
    async def exposition() -> Response:
        """Prometheus metrics."""
        return Response(metrics.exposition(), media_type=metrics.content_type)

    return router


def summary(ranked: RankResult, served: LoadedModel, options: RankOptions, request_id: str) -> dict[str, Any]:
    """The answer without its items, as ``RankSummary`` describes it."""
    document: dict[str, Any] = {
        "request_id": options.request_id or request_id,
        "model": served.name,
        "version": served.version,
        "degraded": ranked.degraded,
    }
    if options.explain:
        document["explain"] = {
            "experts_run": ranked.experts_run,
            "experts_total": served.ranker.selection.num_experts,
            "tasks": {task: {str(e): w for e, w in chosen.items()} for task, chosen in ranked.experts.items()},
        }
    return document


def model_metadata(lineup: ModelRouting) -> ModelMetadata:
    """Inputs by owner and kind, outputs by task, of the current version; and which versions are loaded."""
    served = lineup.current
    ranker = served.ranker
    return ModelMetadata(
        name=served.name,
        versions=list(lineup.versions),
        platform="dselect-ranker",
        backend=served.backend.backend,
        backends=ranker.backends,
        inputs=[
            {"name": f.column, **f.model_dump(include={"kind", "owner", "max_length"})} for f in ranker.schema.inputs
        ],
        outputs=[task.model_dump(include={"name", "kind", "transform", "group"}) for task in ranker.schema.tasks],
        objective=dict(ranker.objective),
        experts_used=ranker.selection.experts_used,
        experts_total=ranker.selection.num_experts,
    )
