"""``POST /v1/feedback``."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from service.http.decode import parse_json, validate_message
from service.http.media_types import JSON, request_format
from service.http.openapi import RawRoute, documented, documented_body
from service.logs.feedback_checks import FeedbackChecks, SuspectFeedbackError
from service.logs.feedback_log import FeedbackLog, FeedbackQueueFullError, FeedbackRecord, FeedbackTooLargeError
from service.logs.quota import FolderFullError, KeyQuotaError
from service.protocol.headers import FEEDBACK_PATH
from service.protocol.messages import Accepted, Event, Feedback
from service.protocol.problems import Problem, invalid_field
from service.settings import Settings
from service.telemetry.metrics import Metrics

EVENTS_PER_PART = 100
"""Events that are validated at once."""
QUEUE_SECONDS, DISK_SECONDS, QUOTA_SECONDS = 1, 10, 60
"""Seconds after which to retry: when the queue is full, the disk fails, and a quota is reached."""


def feedback_routes(
    settings: Settings, feedback_log: FeedbackLog | None, checks: FeedbackChecks, metrics: Metrics
) -> APIRouter:
    """``POST /v1/feedback``; it responds with 404 if ``feedback_log`` is None."""
    router = APIRouter(tags=["feedback"], route_class=RawRoute)

    def decode(body: bytes, key: str | None, now: datetime) -> FeedbackRecord:
        """Decode and check the body of a request.

        Raises:
            Problem: 400, 413 or 422.
            InvalidRequestError: text is too long.
            SuspectFeedbackError: a check fails whose reason leads to a rejection.
        """
        feedback = validate_feedback(parse_json(body, "body", settings), settings.max_candidates)
        count = len(feedback.events)
        try:
            flagged = checks.check(feedback, now)
        except SuspectFeedbackError as error:
            metrics.feedback_events.labels("rejected", error.reason).inc(count)
            raise
        return FeedbackRecord(_feedback_line(feedback, key, now), count, flagged)

    @router.post(
        FEEDBACK_PATH,
        status_code=202,
        response_model=Accepted,
        responses=documented(400, 404, 413, 415, 422, 429, 503),
        openapi_extra=documented_body(Feedback, required=True),
    )
    async def feedback(http: Request) -> Response:
        """Store what users did with ranked items. The response is sent once the events are stored."""
        if feedback_log is None:
            raise Problem(404, "this service collects no feedback: it has no feedback_dir")
        content_type = http.headers.get("content-type", "")
        if request_format(content_type) != JSON:
            raise Problem(415, f"Content-Type is {content_type!r}: send {JSON}")
        key: str | None = getattr(http.state, "key", None)
        try:
            length = http.headers.get("content-length", "")
            size = int(length) if length.isdecimal() else 0
            if size <= settings.max_body_bytes:  # larger bodies are rejected with 413 when they are read
                feedback_log.check(key, size)
            body = await http.body()
            record = await feedback_log.write(key, len(body), partial(decode, body, key, datetime.now(UTC)))
        except SuspectFeedbackError as error:
            raise _rejected(http, error.reason, invalid_field(error.field, error.explanation)) from None
        except KeyQuotaError as error:
            reason = f"API key '{key}' has reached its quota until its files are collected: {error}"
            raise _rejected(http, "key_quota", _retry(429, reason, QUOTA_SECONDS)) from None
        except FolderFullError as error:
            reason = f"the feedback folder has reached its quota until its files are collected: {error}"
            raise _rejected(http, "folder_full", _retry(503, reason, QUOTA_SECONDS)) from None
        except FeedbackTooLargeError as error:
            raise Problem(413, str(error)) from None
        except FeedbackQueueFullError:
            raise _retry(429, "feedback arrives faster than it is written", QUEUE_SECONDS) from None
        except OSError:
            raise _retry(503, "feedback cannot be written now", DISK_SECONDS) from None
        accepted: dict[str, Any] = {"accepted": record.events}
        if record.flagged:
            accepted["flagged"] = dict(record.flagged)
        return Response(orjson.dumps(accepted), 202, media_type=JSON)

    return router


def validate_feedback(document: Any, max_events: int) -> Feedback:
    """Validate parsed JSON in parts, between which other threads can run: pydantic holds the interpreter lock.

    Raises:
        Problem: 413 if there are too many events, 422 if fields are not valid; it names those of one part only.
    """
    events = document.get("events") if isinstance(document, dict) else None
    if isinstance(events, list) and len(events) > max_events:
        raise Problem(413, f"{len(events)} events: this service takes at most {max_events} at a time")
    if not isinstance(events, list) or len(events) <= EVENTS_PER_PART:
        return validate_message(document, Feedback)
    validated: list[Event] = []
    for start in range(0, len(events), EVENTS_PER_PART):
        end = start + EVENTS_PER_PART
        try:
            part = Feedback.model_validate({**document, "events": events[start:end]})
        except ValidationError:
            return validate_message({**document, "events": events[:end]}, Feedback)  # names the fields by their index
        validated += part.events
    return part.model_copy(update={"events": validated})


def _feedback_line(feedback: Feedback, key: str | None, received: datetime) -> bytes:
    """Return the feedback of a request as one line of JSON, which repeats nothing per event.

    Args:
        feedback: feedback of one request.
        key: name of the request's API key, or None without keys.
        received: time of its arrival.
    """
    line: dict[str, Any] = {"request_id": feedback.request_id, "key": key, "received": received}
    if feedback.model is not None:
        line["model"] = feedback.model
    line["events"] = [_event(event) for event in feedback.events]
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z)


def _event(event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = {"item": event.item, "labels": event.labels}
    return fields if event.time is None else {**fields, "time": event.time}


def _retry(status: int, detail: str, seconds: int) -> Problem:
    return Problem(status, detail, headers={"Retry-After": str(seconds)})


def _rejected(http: Request, reason: str, problem: Problem) -> Problem:
    """Record the reason of a rejection for the metrics, and return its problem."""
    http.state.rejection = reason
    return problem
