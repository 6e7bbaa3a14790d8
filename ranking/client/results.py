"""Results of the client's methods; fields of a response that they do not have are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import orjson
import pyarrow as pa

from ranking.client.errors import ServiceError

Id = int | str

RESPONSE = b"response"
"""Key of a schema's metadata that holds the JSON of all fields except the items."""

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class RankedItem:
    """One ranked candidate.

    Attributes:
        id: id as it was sent.
        score: the objective, by which the items are sorted.
        scores: score by task.
        missing: columns that neither the request nor a lookup by id provided.
        contributions: contribution of each feature to the logit, by task; empty without ``explain``, and for items that
            the service does not explain.
    """

    id: Id
    score: float
    scores: dict[str, float]
    missing: list[str]
    contributions: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Experts behind the scores, and what the contributions of the items refer to.

    Attributes:
        experts_run: numbers of the evaluated experts.
        experts_total: number of experts of the model.
        tasks: weight by task and expert.
        baseline: logit by task (regression: value) of an item without features, to which the contributions are added;
            empty if no item has contributions.
        no_contributions: why no item has contributions: ``no_items`` or ``per_example_gate``; None if items have some.
    """

    experts_run: list[int]
    experts_total: int
    tasks: dict[str, dict[str, float]]
    baseline: dict[str, float] = field(default_factory=dict)
    no_contributions: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSummary:
    """Part of a response that is common to all candidates.

    Attributes:
        request_id: id to report feedback with.
        model: name of the model.
        version: version that scored all candidates.
        degraded: whether features of the shared store, or the released version, were not available.
        counters_as_of: time of the last impression in the counters, ISO 8601; None if the model has none.
        explanation: experts that ran, and the baseline of the contributions; None without ``explain``.
    """

    request_id: str
    model: str
    version: str
    degraded: bool
    counters_as_of: str | None = None
    explanation: Explanation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking(RankSummary):
    """Ranked candidates, best first."""

    items: list[RankedItem]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedTable(RankSummary):
    """Ranked candidates as a table, best first.

    Attributes:
        table: columns ``id``, ``score`` (float64), ``scores`` (struct of float32 by task) and ``missing`` (lists).
    """

    table: pa.Table


@dataclass(frozen=True, slots=True)
class Accepted:
    """Number of stored events; ``flagged`` counts suspect ones among them by reason."""

    accepted: int
    flagged: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Served versions of a model.

    Attributes:
        name: name of the model.
        ready: whether a version is served.
        default: whether the model answers requests that name no model.
        version: version that answers all requests except the canary's share.
        canary: canary version, with the share ``canary_weight`` (0 to 1) of the users.
        canary_weight: share of the canary.
        shadow: version that is only compared.
    """

    name: str
    ready: bool
    default: bool
    version: str | None = None
    canary: str | None = None
    canary_weight: float | None = None
    shadow: str | None = None


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """Inputs and outputs of a model.

    Attributes:
        name: name of the model.
        versions: loaded versions.
        inputs: ids and features as tensors: ``name``, ``datatype``, ``shape``, ``kind``, ``owner``, and ``max_length``
            of a list.
        outputs: tasks and the score as tensors: ``name``, ``datatype``, ``shape``, ``kind``, ``transform``, ``group``.
        objective: default weight by task.
        experts_used: numbers of the selected experts.
        experts_total: number of experts.
        platform: kind of the model.
        backend: backend in use.
        backends: backends that the bundle supports.
    """

    name: str
    versions: list[str]
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    objective: dict[str, float]
    experts_used: list[int]
    experts_total: int
    platform: str
    backend: str
    backends: list[str]


def parse_ranking(body: bytes) -> Ranking:
    """Parse a JSON response of a rank operation.

    Raises:
        ServiceError: it is not such a response.
    """
    document = _parse(body)
    items = [_record(RankedItem, item) for item in _list(document, "items")]
    return Ranking(**_summary(document), items=items)


def parse_ranked_table(body: bytes) -> RankedTable:
    """Parse an Arrow response of a rank operation.

    Raises:
        ServiceError: it is not such a response.
    """
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            table = reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise ServiceError(f"the response is not an Arrow stream: {error!s:.200}") from None
    metadata = table.schema.metadata or {}
    summary = _summary(_parse(metadata.get(RESPONSE, b"null")))
    return RankedTable(**summary, table=table.replace_schema_metadata(None))


def parse_accepted(body: bytes) -> Accepted:
    """Parse a response of the feedback operation.

    Raises:
        ServiceError: it is not such a response.
    """
    return _record(Accepted, _parse(body))


def parse_models(body: bytes) -> list[ModelSummary]:
    """Parse the list of models.

    Raises:
        ServiceError: the response is not such a list.
    """
    return [_record(ModelSummary, model) for model in _list(_parse(body), "models")]


def parse_model(body: bytes) -> ModelDetails:
    """Parse the inputs and outputs of a model.

    Raises:
        ServiceError: the response is not a model.
    """
    return _record(ModelDetails, _parse(body))


def parse_nothing(body: bytes) -> None:
    """Ignore the body of a response whose status says everything."""


def _parse(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise ServiceError(f"the response is not JSON: {body[:200].decode(errors='replace')!r}") from None


def _list(document: Any, name: str) -> list[Any]:
    values = document.get(name) if isinstance(document, Mapping) else None
    if not isinstance(values, list):
        raise ServiceError(f"the response has no list '{name}': check the address of the service")
    return values


def _record(cls: type[Record], document: Any) -> Record:
    """Build a result of the fields that its class has; absent ones take their default."""
    if isinstance(document, Mapping):
        names = [each.name for each in fields(cls) if each.name in document]  # type: ignore[arg-type]
        try:
            return cls(**{name: document[name] for name in names})
        except TypeError:
            pass
    raise ServiceError(f"the response lacks fields of {cls.__name__}: check the address of the service")


def _summary(document: Any) -> dict[str, Any]:
    """Return the arguments of ``RankSummary``."""
    summary = _record(RankSummary, document)
    arguments = {each.name: getattr(summary, each.name) for each in fields(summary)}
    if (explanation := document.get("explain")) is not None:
        arguments["explanation"] = _record(Explanation, explanation)
    return arguments
