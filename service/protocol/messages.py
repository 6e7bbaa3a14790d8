"""Messages of the HTTP API; their docstrings and descriptions appear in the OpenAPI document."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
)

from ranking.schema import Objective

MIN_DEADLINE_MS, MAX_DEADLINE_MS = 0.001, 86_400_000.0
"""Bounds of a request's deadline in milliseconds: one microsecond and one day."""

FIRST_YEAR, LAST_YEAR = 1970, 2199
"""Years that the time of a request can have."""

Id = Annotated[
    Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)] | StrictStr,
    Field(description="a 64-bit integer or a string, as in the log; an integer and its decimal text are the same id"),
]
Number = Annotated[FiniteFloat, Field(strict=True)]
Milliseconds = Annotated[FiniteFloat, Field(strict=True, ge=MIN_DEADLINE_MS, le=MAX_DEADLINE_MS)]
Value = Any
"""Value of a feature, any JSON value; ``service.engine.validation`` checks it against the ranker's schema."""
FEATURES = (
    "values by column name of the log: a number, an id, or a list of ids (for a sequence, the newest last); "
    "null is the same as leaving the feature out"
)
Features = Annotated[dict[str, Value], Field(description=FEATURES)]
TASKS = "tasks to score, default all; only the experts that these tasks selected run"
OBJECTIVE = (
    "weight of each task in the score that sorts the candidates; default: the model's weights for the requested "
    "tasks, else the first task alone"
)
DEADLINE = (
    "milliseconds from arrival; if they pass before scoring, or the computation of contributions, starts, "
    "the response is 504"
)
TIME = "time of the impressions, as of which counters are computed (default: time of arrival)"
EXPLAIN = "report the experts that ran, and the contribution of each feature to the logits of the best items"
LABELS = "values by label column of the log, such as 1 for a click, or the seconds watched"


def _parse_time(text: Any) -> datetime:
    """Parse an ISO 8601 time with a time zone, and convert it to UTC.

    Raises:
        ValueError: the text is not such a time.
    """
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError("must be a time with a time zone, such as 2026-01-31T09:30:00Z")


def _check_year(time: datetime) -> datetime:
    if not FIRST_YEAR <= time.year <= LAST_YEAR:
        raise ValueError(f"must be in the years {FIRST_YEAR} to {LAST_YEAR}")
    return time


Time = Annotated[datetime, BeforeValidator(_parse_time)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")


class User(_Message):
    """The user that the candidates are ranked for; features that are left out are looked up by id."""

    id: Id | None = None
    features: Features = Field(default_factory=dict)


class Item(_Message):
    """One candidate; features that are left out are looked up by id."""

    id: Id
    features: Features = Field(default_factory=dict)


class ItemColumns(_Message):
    """Candidates by column, which is cheaper to parse than a list of items; every list is as long as ``id``."""

    id: list[Id]
    features: dict[str, list[Value]] = Field(default_factory=dict)


def _items_layout(items: Any) -> str:
    return "columns" if isinstance(items, dict | ItemColumns) else "rows"


class RankOptions(_Message):
    """A request without its candidates; in an Arrow stream, JSON in the schema metadata under ``request``."""

    request_id: Annotated[str, Field(max_length=256)] | None = None
    user: User = Field(default_factory=User)
    context: Features = Field(default_factory=dict)
    time: Annotated[Annotated[Time, AfterValidator(_check_year)] | None, Field(description=TIME)] = None
    tasks: Annotated[Annotated[list[str], Field(min_length=1)] | None, Field(description=TASKS)] = None
    objective: Annotated[Annotated[Objective, Field(min_length=1)] | None, Field(description=OBJECTIVE)] = None
    top_n: Annotated[StrictInt, Field(gt=0)] | None = None
    deadline_ms: Annotated[Milliseconds | None, Field(description=DEADLINE)] = None
    explain: Annotated[StrictBool, Field(description=EXPLAIN)] = False
    layout: Annotated[Literal["rows", "columns"], Field(description="layout of the items of a JSON response")] = "rows"


class RankRequest(RankOptions):
    """Candidates to rank."""

    items: Annotated[
        Annotated[list[Item], Tag("rows")] | Annotated[ItemColumns, Tag("columns")], Discriminator(_items_layout)
    ]

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "request_id": "r-1",
                "user": {"id": "u1", "features": {"age": 31}},
                "context": {"hour": 9},
                "items": [{"id": "v1", "features": {"price": 3.2}}, {"id": "v2"}],
                "tasks": ["click", "like"],
                "objective": {"click": 1.0, "like": 5.0},
                "top_n": 50,
            }
        }
    )


class RankedItem(_Message):
    """One ranked candidate: ``score`` determines the order, ``scores`` holds one score per task.

    ``missing`` names the columns of features that are known neither from the request nor by id. ``user.id`` and
    ``items.id`` stand for an id that is absent, or that the model has never seen. ``contributions`` holds the
    contribution of each feature to the logit of each task, if the response explains the item.
    """

    id: Id
    score: float
    scores: dict[str, float]
    missing: list[str]
    contributions: dict[str, dict[str, float]] | None = None


class RankedColumns(_Message):
    """Ranked candidates by column; ``missing`` maps each missing column to the positions of the candidates.

    ``contributions`` holds the contributions by task and feature, as long as the number of explained candidates.
    """

    id: list[Id]
    score: list[float]
    scores: dict[str, list[float]]
    missing: dict[str, list[int]]
    contributions: dict[str, dict[str, list[float]]] | None = None


class ExplanationMethod(_Message):
    """Method of the contributions.

    ``gradients``: number of gradients computed. ``error``: maximum deviation of baseline + contributions from the
    logit, relative to the larger of |logit − baseline| and 0.1. ``items``: number of items explained, the best ones.
    """

    name: Literal["integrated_gradients"]
    gradients: int
    error: float
    items: int


NoContributions = Literal["no_items", "per_example_gate"]
NO_CONTRIBUTIONS = (
    "why no item has contributions: the request has no items, or the gate selects experts for each candidate, so that "
    "logits jump where the selection changes; absent if items have contributions"
)


class Explanation(_Message):
    """Experts and baseline behind the scores.

    ``experts_run``: evaluated experts. ``tasks``: weight by task and expert; for a per-example gate, the mean over the
    candidates. ``baseline``: logit of each task (regression: value) if every feature is missing. If no item has
    contributions, ``baseline`` and ``method`` are absent, and ``no_contributions`` is the reason.
    """

    experts_run: list[int]
    experts_total: int
    tasks: dict[str, dict[str, float]]
    baseline: dict[str, float] | None = None
    method: ExplanationMethod | None = None
    no_contributions: Annotated[NoContributions | None, Field(description=NO_CONTRIBUTIONS)] = None


class RankSummary(_Message):
    """A response without its items; in an Arrow stream, JSON in the schema metadata under ``response``.

    ``counters_as_of``: time of the last impression in the counters and histories, if the model has any; without an
    offset if the log has no time zone.
    """

    request_id: str
    model: str
    version: str
    degraded: bool
    counters_as_of: str | None = None
    explain: Explanation | None = None


class RankResponse(RankSummary):
    """Ranked candidates, best first; ties keep the order of the request."""

    items: list[RankedItem]


class ColumnarRankResponse(RankSummary):
    """Ranked candidates by column, for ``"layout": "columns"``; best first, ties keep the order of the request."""

    items: RankedColumns


class IndexRequest(_Message):
    """Filter of the repository index; ``ready``: only versions that are ready."""

    ready: StrictBool = False


MAX_LABELS = 64
"""Maximum number of labels of one event."""
LabelName = Annotated[str, Field(min_length=1, max_length=128)]
Labels = Annotated[dict[LabelName, Number], Field(min_length=1, max_length=MAX_LABELS)]


class Event(_Message):
    """Labels of one item, from the actions of a user."""

    item: Id
    labels: Annotated[Labels, Field(description=LABELS)]
    time: Annotated[Time | None, Field(description="default: time of arrival")] = None


class Feedback(_Message):
    """Events after one ranking; they may be sent in several requests."""

    request_id: Annotated[str, Field(min_length=1, max_length=256, description="request_id of the rank response")]
    model: Annotated[
        Annotated[str, Field(min_length=1, max_length=256)] | None,
        Field(description="model of the rank response; it determines the valid labels (default: any served model)"),
    ] = None
    events: Annotated[list[Event], Field(min_length=1)]


SuspectReason = Literal["unknown_model", "unknown_request", "unknown_item", "unknown_label", "value", "time"]
"""Why feedback is suspect: its model is not served, its request was not answered, its item was not in the answer, no
task has its label, or its value or time is impossible."""


class Accepted(_Message):
    """Number of events that were written; ``flagged`` counts suspect ones among them by reason, if there are any."""

    accepted: int
    flagged: dict[SuspectReason, int] = {}


class ServiceIndex(_Message):
    """Name and version of the service, and the paths of its main operations on this port.

    ``operations_port``: port of metrics and admin operations, if it is another one.
    """

    name: str
    version: str
    links: dict[str, str]
    operations_port: int | None = None


class ModelSummary(_Message):
    """Served versions of a model.

    ``ready``: whether a version is served. ``default``: whether the model answers ``/v1/rank``. ``version``: version
    that answers all requests except the canary's share. ``shadow``: version that is only compared.
    """

    name: str
    ready: bool
    default: bool
    version: str | None = None
    canary: str | None = None
    canary_weight: float | None = None
    shadow: str | None = None


class ModelList(_Message):
    """Models of the service."""

    models: list[ModelSummary]


class ModelMetadata(_Message):
    """Model metadata of the Open Inference Protocol, with further fields of the ranker.

    ``inputs`` and ``outputs`` are tensors: -1 is any number of candidates, or any length of a list. ``kind``, ``owner``
    and ``max_length`` describe a feature, ``kind``, ``transform`` and ``group`` a task.
    ``backend``: backend in use; ``backends``: backends that the bundle supports.
    """

    name: str
    versions: list[str]
    platform: str
    backend: str
    backends: list[str]
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    objective: dict[str, float]
    experts_used: list[int]
    experts_total: int


class ModelReady(_Message):
    """A model, or a version of it, that is served; ``version`` answers the requests."""

    name: str
    version: str
    ready: bool
