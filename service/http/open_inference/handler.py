"""Answers one inference request: decodes its tensors, scores them with the engine, and encodes the response."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from service.engine.admission import Permit
from service.engine.engine import Engine
from service.http.answer_recorder import AnswerRecorder
from service.http.decode import json_size
from service.http.open_inference.body import read_body
from service.http.open_inference.decode import to_rank_request
from service.http.open_inference.encode import encode_tensors
from service.http.open_inference.fields import named_as_tensors
from service.http.rank_handler import cancel_on_disconnect
from service.models.registry import ModelRouting
from service.protocol.open_inference import HEADER_LENGTH
from service.server.body_budget import LEASE, BodyLease
from service.settings import Settings
from service.telemetry.stage_timer import StageTimer


class InferHandler:
    """Answers inference requests.

    Args:
        settings: limits of a request.
        engine: scores requests.
        recorder: passes answered requests on.
    """

    def __init__(self, settings: Settings, engine: Engine, recorder: AnswerRecorder) -> None:
        self._settings, self._engine, self._recorder = settings, engine, recorder

    async def respond(self, http: Request, routing: ModelRouting) -> Response:
        """Answer a request.

        Args:
            http: the request.
            routing: served versions of its model.
        """
        http.state.request_info = {"model": routing.current.name, "version": routing.current.version}
        body = await http.body()
        lease: BodyLease = http.scope["state"][LEASE]
        await lease.start_parsing(json_size(body))
        try:
            return await self._infer(http, routing, body)
        finally:
            lease.end_parsing()

    async def _infer(self, http: Request, routing: ModelRouting, body: bytes) -> Response:
        model = routing.current
        timer: StageTimer = http.state.timer
        request_info: dict[str, Any] = http.state.request_info
        message, elements = read_body(body, http.headers.get(HEADER_LENGTH), self._settings)
        tensors = to_rank_request(message, elements, model)
        options = tensors.options
        if routing.canary is not None:
            model = routing.route(options.user.id, options.request_id or http.state.request_id)
            request_info["version"] = model.version
            if model is routing.canary:  # the names of columns depend on the version
                tensors = to_rank_request(message, elements, model)
                options = tensors.options
        count = len(tensors.items)
        request_info["candidates"], request_info["tasks"] = count, options.tasks or "all"
        permit: Permit = http.state.permit
        permit.count(count)
        with cancel_on_disconnect(permit), named_as_tensors(model.ranker.schema.columns):
            result = await self._engine.rank(model, options, tensors.items, timer)
        degraded = result.prepared.degraded or routing.is_fallback(model)
        response = encode_tensors(result, tensors.outputs, model, message.id, degraded=degraded)
        self._recorder.record(
            http, routing, model, options, tensors.items, result, body_bytes=len(body), degraded=degraded
        )
        timer.end("write")
        return response
