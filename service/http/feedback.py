"""``POST /v1/feedback``: what users did with what was ranked."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
from fastapi import APIRouter, Request, Response

from service.feedback.writer import FeedbackQueueFullError, FeedbackWriter
from service.http.decode import message
from service.http.media_types import JSON, body_format
from service.http.openapi import documented, documented_body
from service.http.raw_route import RawRoute
from service.protocol.messages import Accepted, Feedback
from service.protocol.problems import Problem
from service.settings import Settings


def feedback_routes(settings: Settings, writer: FeedbackWriter | None) -> APIRouter:
    """Takes events; ``writer`` is None where none are collected."""
    router = APIRouter(tags=["feedback"], route_class=RawRoute)

    @router.post(
        "/v1/feedback",
        status_code=202,
        response_model=Accepted,
        responses=documented(400, 404, 413, 415, 422, 429, 503),
        openapi_extra=documented_body(Feedback, required=True),
    )
    async def feedback(http: Request) -> Response:
        """Takes what users did with what was ranked; it is in a file when this is answered."""
        if writer is None:
            raise Problem(404, "this service collects no feedback: it has no feedback_dir")
        given = http.headers.get("content-type", "")
        if body_format(given) != JSON:
            raise Problem(415, f"Content-Type is {given!r}: send {JSON}")
        told = message(await http.body(), Feedback, "body", settings)
        if len(told.events) > settings.max_candidates:
            most = settings.max_candidates
            raise Problem(413, f"{len(told.events)} events: this service takes at most {most} at a time")
        try:
            await writer.write(lines(told, datetime.now(UTC)))
        except FeedbackQueueFullError:
            raise Problem(429, "feedback comes faster than it is written", headers={"Retry-After": "1"}) from None
        except OSError:
            raise Problem(503, "feedback cannot be written now", headers={"Retry-After": "10"}) from None
        return Response(orjson.dumps({"accepted": len(told.events)}), 202, media_type=JSON)

    return router


def lines(told: Feedback, now: datetime) -> bytes:
    """A line of JSON an event."""
    return b"".join(
        orjson.dumps(
            {
                "request_id": told.request_id,
                "item": event.item,
                "labels": event.labels,
                "time": event.time or now,
                "received": now,
            },
            option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z,
        )
        for event in told.events
    )
