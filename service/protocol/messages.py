"""Requests and responses of ranking, as the OpenAPI document shows them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    PositiveFloat,
    StrictBool,
    StrictInt,
    StrictStr,
    Tag,
)

Id = Annotated[
    Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)] | StrictStr,
    Field(description="a 64-bit integer or a string, as in the log"),
]
Number = Annotated[FiniteFloat, Field(strict=True)]
Milliseconds = Annotated[PositiveFloat, Field(strict=True)]
Value = Any
"""Of a feature: whatever JSON can hold; the ranker's schema decides, see ``engine.candidates``."""
FEATURES = (
    "by the column's name in the log: a number, an id, or a list of ids, whose newest stands last if it is a sequence; "
    "null is left out"
)
Features = Annotated[dict[str, Value], Field(description=FEATURES)]
TASKS = "which scores to return, default all; only the experts that these tasks chose run"
OBJECTIVE = (
    "task → weight in the sum that sorts; default: the model's, as far as its tasks are asked for, "
    "else the first task alone"
)
DEADLINE = "from arrival; if it has passed before scoring starts the answer is 504"

LABELS = "by the label's column in the log: 1 for a click, the seconds watched"


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")


class User(_Message):
    """Who the candidates are ranked for; features that are left out are looked up by the id."""

    id: Id | None = None
    features: Features = {}


class Item(_Message):
    """One candidate; features that are left out are looked up by the id."""

    id: Id
    features: Features = {}


class ItemColumns(_Message):
    """Candidates by column: the cheaper form; every list is as long as ``id``."""

    id: list[Id]
    features: dict[str, list[Value]] = {}


def _form(items: Any) -> str:
    return "columns" if isinstance(items, dict | ItemColumns) else "rows"


class RankOptions(_Message):
    """A request without its candidates: in an Arrow stream JSON in the schema's metadata, under ``request``."""

    request_id: Annotated[str, Field(max_length=256)] | None = None
    user: User = User()
    context: Features = {}
    tasks: Annotated[Annotated[list[str], Field(min_length=1)] | None, Field(description=TASKS)] = None
    objective: Annotated[Annotated[dict[str, Number], Field(min_length=1)] | None, Field(description=OBJECTIVE)] = None
    top_n: Annotated[StrictInt, Field(gt=0)] | None = None
    deadline_ms: Annotated[Milliseconds | None, Field(description=DEADLINE)] = None
    explain: StrictBool = False
    layout: Annotated[Literal["rows", "columns"], Field(description="of the answer's items, if it is JSON")] = "rows"


class RankRequest(RankOptions):
    """Candidates to put in order."""

    items: Annotated[Annotated[list[Item], Tag("rows")] | Annotated[ItemColumns, Tag("columns")], Discriminator(_form)]

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
    """``score`` sorts; ``scores`` by task; ``missing`` names the features that were known neither here nor by id.

    Of a cross the unknown parts are named, which can be sent, and not the cross, which cannot.
    """

    id: Id
    score: float
    scores: dict[str, float]
    missing: list[str]


class RankedColumns(_Message):
    """The same by column: ``missing`` has, for each feature that some of them lack, their positions in this answer."""

    id: list[Id]
    score: list[float]
    scores: dict[str, list[float]]
    missing: dict[str, list[int]]


class Explanation(_Message):
    """``experts_run``: what was evaluated; ``tasks``: task → expert → weight (per example: mean over candidates)."""

    experts_run: list[int]
    experts_total: int
    tasks: dict[str, dict[str, float]]


class RankSummary(_Message):
    """An answer without its items: in an Arrow stream JSON in the schema's metadata, under ``response``."""

    request_id: str
    model: str
    version: str
    degraded: bool
    explain: Explanation | None = None


class RankResponse(RankSummary):
    """Candidates, best first (ties in the order of the request)."""

    items: list[RankedItem]


class ColumnarRankResponse(RankSummary):
    """Candidates, best first (ties in the order of the request), by column: for ``"layout": "columns"``."""

    items: RankedColumns


class IndexRequest(_Message):
    """Which versions are listed; ``ready``: only those that answer."""

    ready: StrictBool = False


def _moment(text: Any) -> datetime:
    """A time with its zone → the same in UTC.

    Raises:
        ValueError: it is none, or has no zone.
    """
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError("must be a time with its zone, such as 2026-01-31T09:30:00Z")


Labels = Annotated[dict[Annotated[str, Field(min_length=1, max_length=128)], Number], Field(min_length=1)]


class Event(_Message):
    """What a user did with one item."""

    item: Id
    labels: Annotated[Labels, Field(description=LABELS)]
    time: Annotated[Annotated[datetime, BeforeValidator(_moment)] | None, Field(description="default: its arrival")] = (
        None
    )


class Feedback(_Message):
    """What came of one ranking; it may come in parts."""

    request_id: Annotated[str, Field(min_length=1, max_length=256, description="of the ranking's answer")]
    events: Annotated[list[Event], Field(min_length=1)]


class Accepted(_Message):
    """How many events were written."""

    accepted: int


class ModelMetadata(_Message):
    """Names of the Open Inference Protocol, and what this ranker needs and gives.

    ``backend``: what executes it here; ``backends``: what its bundle carries.
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
