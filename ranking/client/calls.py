"""Builds the HTTP request of each operation.

The service validates requests; here only values are rejected that would not reach it as they are.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypedDict, TypeVar
from urllib.parse import quote

import orjson
import pyarrow as pa

from ranking.client import results
from ranking.client.errors import InvalidRequestError
from ranking.client.results import Id

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
REQUEST = b"request"
"""Key of a schema's metadata that holds the JSON of all fields except the items."""
OPTIONS = orjson.OPT_SERIALIZE_NUMPY
MAX_REQUEST_ID = 256
"""Maximum number of characters of a request id."""

Result = TypeVar("Result")
Items = Sequence[Id | Mapping[str, Any]] | Mapping[str, Any]
"""Candidates: ids; rows ``{"id": …, "features": {…}}``; or columns ``{"id": […], "features": {NAME: […]}}``."""


class RankOptions(TypedDict, total=False):
    """Options of a rank operation.

    Attributes:
        user: id of the user, or ``{"id": …, "features": {…}}``.
        context: features of the context, by column.
        tasks: tasks to score; default all.
        objective: weight by task in the score that sorts the candidates; default: that of the model.
        top_n: number of items to return; default all.
        deadline_ms: milliseconds after its arrival until which the service must start scoring, and the computation of
            contributions. No attempt starts later than this after the call.
        explain: whether to return the experts that ran, and the contributions of features to the best items.
        model: name of the model; default: the default model of the service.
        time: time of the impressions with a time zone, as of which counters are computed; default: time of arrival.
        request_id: id of the request, up to 256 characters; default: a random one. Feedback refers to it.
    """

    user: Id | Mapping[str, Any] | None
    context: Mapping[str, Any] | None
    tasks: Sequence[str] | None
    objective: Mapping[str, float] | None
    top_n: int | None
    deadline_ms: float | None
    explain: bool
    model: str | None
    time: datetime | str | None
    request_id: str | None


@dataclass(frozen=True)
class Call(Generic[Result]):
    """The HTTP request of an operation.

    Attributes:
        method: HTTP method.
        path: path below the base URL.
        parse: parses the body of a successful response; raises ``ServiceError``.
        body: body, or None.
        headers: headers of the request.
        repeatable: whether the service may receive the request twice without a further effect.
        deadline: seconds after the start of the call until which an attempt may start; None: the client's timeout.
        retried: whether failed attempts are repeated at all.
    """

    method: str
    path: str
    parse: Callable[[bytes], Result]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    deadline: float | None = None
    retried: bool = True


READY = Call("GET", "/v2/health/ready", results.parse_nothing, retried=False)
MODELS = Call("GET", "/v1/models", results.parse_models)


def model_call(name: str) -> Call[results.ModelDetails]:
    """Build the request for the inputs and outputs of a model."""
    return Call("GET", f"/v2/models/{_name(name)}", results.parse_model)


def rank_call(items: Items, *, model: str | None = None, **options: Any) -> Call[results.Ranking]:
    """Build a rank request in JSON; see ``RankOptions``.

    Raises:
        InvalidRequestError: an argument is not valid.
    """
    fields = _options(**options)
    body = _encode({**fields, "items": _items(items)})
    return _rank(results.parse_ranking, JSON, body, fields, model)


def rank_table_call(table: pa.Table, *, model: str | None = None, **options: Any) -> Call[results.RankedTable]:
    """Build a rank request as an Arrow stream; see ``RankOptions``.

    Raises:
        InvalidRequestError: an argument is not valid.
    """
    fields = _options(**options)
    table = table.combine_chunks().replace_schema_metadata({REQUEST: _encode(fields)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return _rank(results.parse_ranked_table, ARROW, sink.getvalue().to_pybytes(), fields, model)


def feedback_call(
    request_id: str, events: Sequence[Mapping[str, Any]], *, model: str | None = None
) -> Call[results.Accepted]:
    """Build a feedback request.

    It is repeatable if all events have a ``time``: a repeat then equals the first one, and `ranker join` counts equal
    events once. Otherwise the time of arrival orders the events, and a repeat could replace a later value.

    Raises:
        InvalidRequestError: an argument is not valid.
    """
    _check_request_id(request_id)
    documents = []
    for position, event in enumerate(events):
        if not isinstance(event, Mapping):
            raise InvalidRequestError.of(f"events[{position}]", "must be a mapping")
        time = _time(f"events[{position}].time", event.get("time"))
        documents.append({**event} if time is None else {**event, "time": time})
    document = {"request_id": request_id, **({} if model is None else {"model": model}), "events": documents}
    timed = all(event.get("time") is not None for event in documents)
    headers = {"Content-Type": JSON, **_log_id(request_id)}
    return Call("POST", "/v1/feedback", results.parse_accepted, _encode(document), headers, repeatable=timed)


def _rank(
    parse: Callable[[bytes], Result], media_type: str, body: bytes, fields: Mapping[str, Any], model: str | None
) -> Call[Result]:
    path = "/v1/rank" if model is None else f"/v1/models/{_name(model)}/rank"
    headers = {"Content-Type": media_type, "Accept": media_type, **_log_id(fields["request_id"])}
    deadline = fields["deadline_ms"] / 1000 if "deadline_ms" in fields else None
    return Call("POST", path, parse, body, headers, deadline=deadline)


def _options(
    *,
    user: Id | Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
    tasks: Sequence[str] | None = None,
    objective: Mapping[str, float] | None = None,
    top_n: int | None = None,
    deadline_ms: float | None = None,
    explain: bool = False,
    time: datetime | str | None = None,
    request_id: str | None = None,
) -> dict[str, Any]:
    """Return the fields of a rank request without its items, and without those that have their default.

    Every request has an id, so that a repeated one is recorded once by `ranker join`.
    """
    if request_id is None:
        request_id = uuid.uuid4().hex
    _check_request_id(request_id)
    fields = {
        "user": user if user is None or isinstance(user, Mapping) else {"id": user},
        "context": context,
        "time": _time("time", time),
        "tasks": tasks,
        "objective": objective,
        "top_n": top_n,
        "deadline_ms": deadline_ms,
        "explain": explain or None,
    }
    return {"request_id": request_id} | {name: value for name, value in fields.items() if value is not None}


def _items(items: Items) -> Any:
    """Return columns and rows as they are, and ids as columns, which are cheaper to parse."""
    if isinstance(items, Mapping):
        return items
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise InvalidRequestError.of("items", "must be a list of ids or rows, or columns")
    rows = list(items)
    return rows if any(isinstance(row, Mapping) for row in rows) else {"id": rows}


def _time(name: str, time: Any) -> Any:
    """Return a time as text.

    Raises:
        InvalidRequestError: it has no time zone.
    """
    if not isinstance(time, datetime):
        return time
    if time.utcoffset() is None:
        raise InvalidRequestError.of(name, "must be a time with a time zone")
    return time.isoformat()


def _check_request_id(request_id: str) -> None:
    if not isinstance(request_id, str) or not 0 < len(request_id) <= MAX_REQUEST_ID:
        raise InvalidRequestError.of("request_id", f"must be a text of 1 to {MAX_REQUEST_ID} characters")


def is_visible_ascii(text: str) -> bool:
    """Return whether a text has characters and an HTTP header can contain all of them."""
    return text != "" and text.isascii() and text.isprintable() and " " not in text


def _log_id(request_id: str) -> dict[str, str]:
    """Return the header that puts the id into the log of the service, if a header can contain it."""
    return {"X-Request-ID": request_id} if is_visible_ascii(request_id) else {}


def _name(model: str) -> str:
    if not model:
        raise InvalidRequestError.of("model", "must not be empty")
    return quote(model, safe="")


def _encode(document: Mapping[str, Any]) -> bytes:
    """Return JSON; a number that is not finite becomes null, which means that the feature is missing.

    Raises:
        InvalidRequestError: a value has no form in JSON.
    """
    try:
        return orjson.dumps(document, option=OPTIONS)
    except TypeError as error:
        raise InvalidRequestError.of("body", f"cannot be sent as JSON: {error}") from None
