"""Answers one rank request: decodes it, scores it, and encodes the response."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from service.engine.admission import Permit
from service.engine.engine import Engine
from service.engine.errors import TooManyExplanationsError
from service.engine.model import LoadedModel
from service.engine.response import RankResult
from service.http.answer_recorder import AnswerRecorder
from service.http.decode import decode_request, json_size
from service.http.encode import encode_response
from service.http.media_types import ARROW, request_format, response_format
from service.models.registry import ModelRouting
from service.protocol.messages import NoContributions, RankOptions
from service.server.body_budget import LEASE, BodyLease
from service.settings import Settings
from service.telemetry.metrics import EXPLAIN
from service.telemetry.stage_timer import StageTimer


@contextmanager
def cancel_on_disconnect(permit: Permit) -> Iterator[None]:
    """Cancel the enclosed work when the client of the permit disconnects.

    Raises:
        ClientDisconnect: the client has disconnected.
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


class RankHandler:
    """Answers rank requests.

    Args:
        settings: limits of a request.
        engine: scores requests.
        recorder: passes answered requests on.
    """

    def __init__(self, settings: Settings, engine: Engine, recorder: AnswerRecorder) -> None:
        self._settings, self._engine, self._recorder = settings, engine, recorder

    async def respond(self, http: Request, routing: ModelRouting, *, trial: bool = False) -> Response:
        """Answer a request.

        Args:
            http: the request.
            routing: served versions of its model.
            trial: whether a person tries a request out, so that nobody sees the candidates: the answer is neither
                logged, nor remembered for feedback, nor scored by a shadow version.
        """
        http.state.request_info = {"model": routing.current.name, "version": routing.current.version}
        accept_format = response_format(http.headers.get("accept", ""))
        body_format = request_format(http.headers.get("content-type", ""))
        body = await http.body()
        lease: BodyLease = http.scope["state"][LEASE]
        await lease.start_parsing(len(body) if body_format == ARROW else json_size(body))
        try:
            return await self._rank(http, body, routing, body_format, accept_format, lease, trial=trial)
        finally:
            lease.end_parsing()

    async def _rank(
        self,
        http: Request,
        body: bytes,
        routing: ModelRouting,
        body_format: str,
        accept_format: str,
        lease: BodyLease,
        *,
        trial: bool,
    ) -> Response:
        model = routing.current
        timer: StageTimer = http.state.timer
        request_info: dict[str, Any] = http.state.request_info
        options, items = decode_request(body, body_format, model, self._settings)
        if routing.canary is not None:
            model = routing.route(options.user.id, options.request_id or http.state.request_id)
            request_info["version"] = model.version
            if model is routing.canary and body_format == ARROW:  # column names of a stream depend on the version
                options, items = decode_request(body, body_format, model, self._settings)
        if body_format == ARROW:
            lease.grow_parsed(items.arrow_bytes())
        request_info["candidates"], request_info["tasks"] = len(items), options.tasks or "all"
        permit: Permit = http.state.permit
        permit.count(len(items))
        try:
            with cancel_on_disconnect(permit):
                result = await self._engine.rank(model, options, items, timer)
        except TooManyExplanationsError:
            http.state.rejection = EXPLAIN
            raise
        degraded = result.prepared.degraded or routing.is_fallback(model)
        summary = rank_summary(result, model, options, http.state.request_id, degraded=degraded)
        response = encode_response(result, summary, accept_format, columns=options.layout == "columns")
        if not trial:
            self._recorder.record(http, routing, model, options, items, result, body_bytes=len(body), degraded=degraded)
        timer.end("write")
        return Response(response, media_type=accept_format)


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
    if result.prepared.counters_as_of is not None:
        summary["counters_as_of"] = result.prepared.counters_as_of
    if options.explain:
        summary["explain"] = explanation(result, model)
    return summary


def explanation(result: RankResult, model: LoadedModel) -> dict[str, Any]:
    """Return the explanation of a response without its items, with the fields of ``Explanation``."""
    explanation: dict[str, Any] = {
        "experts_run": result.experts_run,
        "experts_total": model.ranker.selection.num_experts,
        "tasks": {task: {str(e): w for e, w in weights.items()} for task, weights in result.prepared.experts.items()},
    }
    contributions = result.contributions
    if contributions is None:
        reason: NoContributions = "per_example_gate" if model.ranker.contributions_graph is None else "no_items"
        explanation["no_contributions"] = reason
    else:
        explanation["baseline"] = dict(zip(contributions.tasks, contributions.baseline.tolist(), strict=True))
        explanation["method"] = {
            "name": "integrated_gradients",
            "gradients": contributions.gradients,
            "error": contributions.error,
            "items": len(contributions.values),
        }
    return explanation
