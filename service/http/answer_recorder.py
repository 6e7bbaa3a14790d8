"""Passes answered requests on to feedback checks, the served log and shadow versions."""

from __future__ import annotations

from fastapi import Request

from service.engine.model import LoadedModel
from service.engine.request import RawFeatures
from service.engine.response import RankResult
from service.logs.answered_requests import AnsweredRequests
from service.logs.served_log import ServedLog
from service.logs.served_request import ServedRequest
from service.models.registry import ModelRouting
from service.models.shadow import ShadowRequest, ShadowScorer
from service.protocol.messages import RankOptions
from service.telemetry.stage_timer import StageTimer


class AnswerRecorder:
    """Passes answered requests on.

    Args:
        shadows: scores requests again with shadow versions.
        answers: remembers answers to check feedback, or None.
        served_log: logs answered requests, or None.
    """

    def __init__(self, shadows: ShadowScorer, answers: AnsweredRequests | None, served_log: ServedLog | None) -> None:
        self._shadows, self._answers, self._served_log = shadows, answers, served_log

    def record(
        self,
        http: Request,
        routing: ModelRouting,
        model: LoadedModel,
        options: RankOptions,
        items: RawFeatures,
        result: RankResult,
        *,
        body_bytes: int,
        degraded: bool,
    ) -> None:
        """Pass an answered request on.

        Args:
            http: the request.
            routing: served versions of its model.
            model: version that scored the request.
            options: everything in the request but its candidates.
            items: its candidates.
            result: its result.
            body_bytes: size of its body.
            degraded: whether the answer is degraded.
        """
        request_id = options.request_id or http.state.request_id
        if self._answers is not None:
            self._answers.add(request_id, result.ids)
        if self._served_log is not None:
            timer: StageTimer = http.state.timer
            answered = request_id, options.time, timer.arrived, options.user.id, degraded, body_bytes
            self._served_log.add(ServedRequest(model, *answered, result))
        if routing.shadow is not None and routing.shadow is not model:
            self._shadows.submit(ShadowRequest(routing.shadow, options, items, result, model.version))
