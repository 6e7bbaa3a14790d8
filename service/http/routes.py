"""The operations for ranking, models, health and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.requests import ClientDisconnect

from service.engine.admission import Permit
from service.engine.engine import Engine
from service.engine.model import LoadedModel
from service.engine.parsed_bodies import ParsedBodies, ParsedBody
from service.engine.response import RankResult
from service.feedback.answers import AnsweredRequests
from service.http.decode import decode_request
from service.http.encode import encode_response
from service.http.media_types import ARROW, request_format, response_format
from service.http.openapi import RANKING, documented
from service.http.raw_route import RawRoute
from service.models.registry import LOADING, ModelRegistry, ModelRouting, ModelUnavailableError
from service.models.shadow import ShadowRequest, ShadowScorer
from service.protocol.messages import ModelMetadata, RankOptions
from service.protocol.problems import unavailable
from service.served.record import ServedRequest
from service.served.writer import ServedLog
from service.server.context import Lifecycle
from service.settings import Settings
from service.telemetry.metrics import Metrics
from service.telemetry.request_telemetry import RequestInfo
from service.telemetry.stage_timer import StageTimer

PARSED_SHARE = 8
"""Bytes of bodies that a process holds, divided by those that are parsed at a time."""


@contextmanager
def cancel_on_disconnect(permit: Permit) -> Iterator[None]:
    """Cancel the enclosed work when the client of the permit disconnects.

    Raises:
        ClientDisconnect: The client has disconnected.
    """
    if permit.cancelled:
        raise ClientDisconnect
    task = permit.task = asyncio.current_task()
    assert task is not None
    try:
        yield
    except asyncio.CancelledError:
        if not permit.cancelled or task.uncancel():
            raise
        raise ClientDisconnect from None
    finally:
        permit.task = None


def ranking_routes(
    settings: Settings,
    models: ModelRegistry,
    engine: Engine,
    shadows: ShadowScorer,
    answers: AnsweredRequests | None = None,
    served_log: ServedLog | None = None,
) -> APIRouter:
    """``POST …/rank`` for the default model, a model, and a version of a model.

    Args:
        settings: Limits of a request.
        models: Served models.
        engine: Scores requests.
        shadows: Scores requests again with shadow versions.
        answers: Remembers answers to check feedback, or None.
        served_log: Logs answered requests, or None.
    """
    router = APIRouter(tags=["ranking"], route_class=RawRoute)
    parsed_bodies = ParsedBodies(settings.body_budget // PARSED_SHARE)

    async def respond(http: Request, routing: ModelRouting) -> Response:
        http.state.request_info = RequestInfo(routing.current.name, routing.current.version)
        accept_format = response_format(http.headers.get("accept", ""))
        body_format = request_format(http.headers.get("content-type", ""))
        parsed = await parsed_bodies.acquire(len(await http.body()))
        try:
            return await rank_body(http, routing, body_format, accept_format, parsed)
        finally:
            parsed.release()

    async def rank_body(
        http: Request, routing: ModelRouting, body_format: str, accept_format: str, parsed: ParsedBody
    ) -> Response:
        model, body = routing.current, await http.body()
        timer: StageTimer = http.state.timer
        request_info: RequestInfo = http.state.request_info
        request = decode_request(body, body_format, model, settings)
        if routing.canary is not None:
            user, request_id = request.options.user.id, request.options.request_id
            model = routing.route(user, request_id or http.state.request_id)
            request_info.version = model.version
            if model is routing.canary and body_format == ARROW:  # column names of a stream depend on the version
                request = decode_request(body, body_format, model, settings)
        if body_format == ARROW:
            parsed.grow(request.candidates.arrow_bytes())
        options = request.options
        request_info.candidates, request_info.tasks = len(request.candidates), options.tasks
        permit: Permit = http.state.permit
        permit.count(len(request.candidates))
        with cancel_on_disconnect(permit):
            result = await engine.rank(model, request, timer)
        degraded = result.degraded or (routing.degraded and model is routing.current)
        summary = rank_summary(result, model, options, http.state.request_id, degraded=degraded)
        response = encode_response(result, summary, accept_format, columns=options.layout == "columns")
        if answers is not None:
            answers.add(summary["request_id"], result.ids)
        if served_log is not None:
            answered = summary["request_id"], options.time, timer.arrived, options.user.id, degraded
            served_log.add(ServedRequest(model, *answered, result))
        timer.end("write")
        if routing.shadow is not None and routing.shadow is not model:
            shadows.submit(ShadowRequest(routing.shadow, request, result, model.version))
        return Response(response, media_type=accept_format)

    @router.post("/v1/rank", **RANKING)
    async def rank(http: Request) -> Response:
        """Rank candidates with the default model."""
        return await respond(http, models.get())

    @router.post("/v1/models/{model}/rank", **RANKING)
    async def rank_with_model(http: Request, model: str) -> Response:
        """Rank candidates with the current version of a model, or its canary."""
        return await respond(http, models.get(model))

    @router.post("/v1/models/{model}/versions/{version}/rank", **RANKING)
    async def rank_with_version(http: Request, model: str, version: str) -> Response:
        """Rank candidates with a loaded version of a model: current, canary or shadow."""
        return await respond(http, ModelRouting(models.get_version(model, version)))

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


def model_routes(models: ModelRegistry) -> APIRouter:
    """Metadata and readiness of models, with the names of the Open Inference Protocol."""
    router = APIRouter(tags=["models"])

    @router.get("/v2/models/{model}", response_model=ModelMetadata, responses=documented(404, 503))
    async def metadata(model: str) -> ModelMetadata:
        """Return the inputs and outputs of a model."""
        return model_metadata(models.get(model))

    @router.get("/v2/models/{model}/ready", responses=documented(404, 503))
    async def model_ready(model: str) -> dict[str, bool | str]:
        """Return 200 and the current version if a model is served."""
        current = models.get(model).current
        return {"name": current.name, "version": current.version, "ready": True}

    return router


def metrics_routes(metrics: Metrics) -> APIRouter:
    """``GET /metrics`` for Prometheus."""
    router = APIRouter(tags=["operations"])

    @router.get("/metrics", response_class=PlainTextResponse)
    async def exposition() -> Response:
        """Return the metrics in the format of Prometheus."""
        return Response(metrics.exposition(), media_type=metrics.content_type)

    return router


def rank_summary(
    result: RankResult, model: LoadedModel, options: RankOptions, request_id: str, *, degraded: bool
) -> dict[str, Any]:
    """Return the response without its items, with the fields of ``RankSummary``."""
    summary: dict[str, Any] = {
        "request_id": options.request_id or request_id,
        "model": model.name,
        "version": model.version,
        "degraded": degraded,
    }
    if result.counters_as_of is not None:
        summary["counters_as_of"] = result.counters_as_of
    if options.explain:
        summary["explain"] = {
            "experts_run": result.experts_run,
            "experts_total": model.ranker.selection.num_experts,
            "tasks": {task: {str(e): w for e, w in weights.items()} for task, weights in result.experts.items()},
        }
    return summary


def model_metadata(routing: ModelRouting) -> ModelMetadata:
    """Return the inputs and outputs of the current version, and the loaded versions."""
    model = routing.current
    ranker = model.ranker
    return ModelMetadata(
        name=model.name,
        versions=list(routing.versions),
        platform="dselect-ranker",
        backend=model.backend.name,
        backends=ranker.backends,
        inputs=[
            {"name": f.column, **f.model_dump(include={"kind", "owner", "max_length"})} for f in ranker.schema.inputs
        ],
        outputs=[task.model_dump(include={"name", "kind", "transform", "group"}) for task in ranker.schema.tasks],
        objective=dict(ranker.objective),
        experts_used=ranker.selection.experts_used,
        experts_total=ranker.selection.num_experts,
    )
