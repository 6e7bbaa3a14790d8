"""``POST /v1/feedback``: what users did with ranked items."""

from __future__ import annotations

from datetime import UTC, datetime

import orjson
from fastapi import APIRouter, Request, Response

from service.feedback.writer import FeedbackQueueFullError, FeedbackWriter
from service.http.decode import decode_message
from service.http.media_types import JSON, request_format
from service.http.openapi import documented, documented_body
from service.http.routes import RawRoute
from service.protocol.messages import Accepted, Feedback
from service.protocol.problems import Problem
from service.settings import Settings


def feedback_routes(settings: Settings, writer: FeedbackWriter | None) -> APIRouter:
    """``POST /v1/feedback``; it responds with 404 if ``writer`` is None."""
    router = APIRouter(tags=["feedback"], route_class=RawRoute)

    @router.post(
        "/v1/feedback",
        status_code=202,
        response_model=Accepted,
        responses=documented(400, 404, 413, 415, 422, 429, 503),
        openapi_extra=documented_body(Feedback, required=True),
    )
    async def feedback(http: Request) -> Response:
        """Store what users did with ranked items. The response is sent once the events are in a file."""
        if writer is None:
            raise Problem(404, "this service collects no feedback: it has no feedback_dir")
        content_type = http.headers.get("content-type", "")
        if request_format(content_type) != JSON:
            raise Problem(415, f"Content-Type is {content_type!r}: send {JSON}")
        message = decode_message(await http.body(), Feedback, "body", settings)
        count, limit = len(message.events), settings.max_candidates
        if count > limit:
            raise Problem(413, f"{count} events: this service takes at most {limit} at a time")
        try:
            await writer.write(feedback_lines(message, datetime.now(UTC)))
        except FeedbackQueueFullError:
            raise Problem(429, "feedback comes faster than it is written", headers={"Retry-After": "1"}) from None
        except OSError:
            raise Problem(503, "feedback cannot be written now", headers={"Retry-After": "10"}) from None
        return Response(orjson.dumps({"accepted": count}), 202, media_type=JSON)

    return router


def feedback_lines(feedback: Feedback, now: datetime) -> bytes:
    """Return one line of JSON per event."""
    return b"".join(
        orjson.dumps(
            {
                "request_id": feedback.request_id,
                "item": event.item,
                "labels": event.labels,
                "time": event.time or now,
                "received": now,
            },
            option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z,
        )
        for event in feedback.events
    )
