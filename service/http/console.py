"""``/console/api``: what the console shows beyond ``/metrics``, and requests that people try out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

from ranking.artifacts import bundle, repository
from ranking.artifacts.bounded_calls import BoundedCalls, TooManyCallsError
from ranking.artifacts.kafka_address import KafkaAddress
from ranking.artifacts.object_store import ObjectLocation
from ranking.artifacts.store_address import redact_address
from ranking.errors import RankerError
from ranking.metrics.verdict import verdict
from ranking.schema import Schema
from service.http.admin import VersionEntry, index_model
from service.http.index import NAME
from service.http.openapi import RANKING, RawRoute, documented
from service.http.rank_handler import RankHandler
from service.models import catalog
from service.models.reconciler import Reconciler
from service.models.registry import ModelRegistry
from service.protocol.problems import Problem, unavailable
from service.settings import LogTarget, Settings

PREFIX = "/console/api"
REPOSITORY_SECONDS = 10.0
"""Seconds until an operation responds although the repository does not."""
MAX_OPERATIONS = 8
"""Maximum number of operations that read the repository at the same time."""
CACHED_VERSIONS = 512
"""Number of versions whose evaluation stays in memory; published versions do not change."""
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'; sandbox"
)
"""Content security policy of a report, which comes from a bundle: it runs no scripts and loads nothing."""

HEADLINE_METRICS = ("auc", "rmse")
"""Metrics that represent a task; each task has one of them."""

Result = TypeVar("Result")


class TaskQuality(BaseModel):
    """Headline metric of a task on the test split of the run, with its 95 % interval.

    ``mean_score``: mean score of the rows; null for a regression task.
    """

    metric: str
    value: float | None
    interval: list[float] | None
    mean_score: float | None


class Quality(BaseModel):
    """Headline metrics of a version.

    ``users``: share of the users whose rows were evaluated. ``verdict``: which baselines the model does not beat, or
    that it beats all.
    """

    rows: int
    users: float
    tasks: dict[str, TaskQuality]
    verdict: list[str]


class ConsoleVersion(VersionEntry):
    """A published version. ``weight``: share of the canary. ``report``: whether the version has a report."""

    weight: float | None = None
    published: datetime | None = None
    evaluation: Quality | None = None
    report: bool = False


class ConsoleModel(BaseModel):
    """A model with its release (as in current.json) and all published versions."""

    name: str
    default: bool
    ready: bool
    release: dict[str, Any] | None
    versions: list[ConsoleVersion]


class ConsoleModels(BaseModel):
    """All models of the repository, and the name and version of the service."""

    service: dict[str, str]
    models: list[ConsoleModel]


class SelectionDetails(BaseModel):
    """Selected experts: weight by task and expert; of a per-example gate, the mean over rows of the validation split.

    ``gate``: kind of the gate.
    """

    experts_total: int
    experts_used: list[int]
    tasks: dict[str, dict[str, float]]
    gate: str
    per_example: bool


class VersionDetails(BaseModel):
    """A published version as its bundle describes it.

    ``inputs``: features that a request may send besides ids; ``counter`` marks features of counters and
    histories, which the service computes if a request leaves them out.
    ``evaluation``: the run's evaluation.json. ``backend``: backend in use; null if the version is not loaded.
    """

    name: str
    version: str
    provenance: dict[str, Any]
    tasks: list[dict[str, Any]]
    inputs: list[dict[str, Any]]
    objective: dict[str, float]
    selection: SelectionDetails
    evaluation: dict[str, Any] | None
    backend: str | None


class ServedLogState(BaseModel):
    """Name of the folder or topic of the served log, and the share of users in it."""

    target: str
    share: float


class FeedbackTarget(BaseModel):
    """Name of the folder or topic of feedback."""

    target: str


class FeatureStoreState(BaseModel):
    """Address of the feature store without its password."""

    address: str


class CountersState(BaseModel):
    """Time of the last impression in the counters of the current version."""

    as_of: str


class LoopState(BaseModel):
    """Enabled parts of the loop; /metrics has their counts."""

    served_log: ServedLogState | None
    feedback: FeedbackTarget | None
    feature_store: FeatureStoreState | None
    counters: dict[str, CountersState]
    limits: dict[str, float | None]


def console_routes(
    settings: Settings, models: ModelRegistry, reconciler: Reconciler, handler: RankHandler
) -> list[APIRouter]:
    """``/console/api``: models, versions, reports, the loop, and ranking on trial."""
    router, trials = APIRouter(prefix=PREFIX, tags=["console"]), APIRouter(tags=["console"], route_class=RawRoute)
    path = settings.repository
    calls = BoundedCalls(REPOSITORY_SECONDS, MAX_OPERATIONS)

    @lru_cache(CACHED_VERSIONS)
    def read_quality(model: str, number: int) -> Quality | None:
        evaluation = catalog.read_evaluation(path, model, number)
        if evaluation is None:
            return None
        with bundle.as_bundle_error(repository.bundle_folder(path, model, number)):
            return summarize(evaluation)

    async def read(operation: Callable[[], Result]) -> Result:
        """Return the result of an operation on the repository; errors become problems without its path."""
        try:
            return await calls.call_async(operation)
        except RankerError as error:
            raise Problem(409, str(error).replace(f"{path}/", "").replace(str(path), "the repository")) from None
        except TimeoutError:
            raise Problem(504, f"the repository does not respond within {REPOSITORY_SECONDS:g} s") from None
        except TooManyCallsError:
            raise unavailable(f"{MAX_OPERATIONS} earlier operations have not finished") from None

    def find(model: str, version: str) -> int:
        """Return the number of a published version.

        Raises:
            Problem: 404 if the model or the version is unknown.
        """
        names = repository.list_models(path)
        if model not in names:
            raise Problem(404, f"the repository has no model '{model}': it has {', '.join(names) or 'none'}")
        numbers = [str(number) for number in repository.list_versions(path, model)]
        if version not in numbers:
            raise Problem(404, f"'{model}' has no version '{version}': it has {', '.join(numbers)}")
        return int(version)

    def describe_model(name: str) -> ConsoleModel:
        routing = models.routing(name)
        versions = []
        for entry in index_model(path, name, models, reconciler):
            weight = routing.weight if routing is not None and "canary" in entry.roles else None
            described = ConsoleVersion(**entry.model_dump(), weight=weight)
            if number := int(entry.version or 0):
                try:
                    described.evaluation = read_quality(name, number)
                    described.report = catalog.has_report(path, name, number)
                except RankerError as error:
                    described.reason = "; ".join(filter(None, [entry.reason, str(error).replace(f"{path}/", "")]))
                described.published = catalog.published_at(path, name, number)
            versions.append(described)
        try:
            release = repository.read_release(path, name).to_json()
        except RankerError:
            release = None  # an entry of the index has the reason
        return ConsoleModel(
            name=name, default=name == models.default, ready=routing is not None, release=release, versions=versions
        )

    def describe_version(model: str, version: str) -> VersionDetails:
        number = find(model, version)
        entry = catalog.read_entry(path, model, number)
        routing = models.routing(model)
        loaded = None if routing is None else routing.versions.get(version)
        return VersionDetails(
            name=model,
            version=version,
            provenance={"made_by": entry.made_by, "trained_until": entry.trained_until, "flops": entry.flops},
            tasks=[task.model_dump(include={"name", "kind", "group"}) for task in entry.schema.tasks],
            inputs=describe_inputs(entry.schema),
            objective=entry.objective,
            selection=SelectionDetails(
                experts_total=entry.selection.num_experts,
                experts_used=entry.selection.experts_used,
                tasks=entry.selection.to_json()["tasks"],
                gate=entry.gate,
                per_example=entry.selection.per_example,
            ),
            evaluation=catalog.read_evaluation(path, model, number),
            backend=None if loaded is None else loaded.backend.name,
        )

    @router.get("/models", responses=documented(409, 503, 504))
    async def list_models() -> ConsoleModels:
        """List all models with their releases and versions, and the headline metrics of each version."""
        described = await read(lambda: [describe_model(name) for name in repository.list_models(path)])
        return ConsoleModels(service={"name": NAME, "version": package_version(NAME)}, models=described)

    @router.get("/models/{model}/versions/{version}", responses=documented(404, 409, 503, 504))
    async def show_version(model: str, version: str) -> VersionDetails:
        """Return features, tasks, selection and evaluation of a version."""
        return await read(lambda: describe_version(model, version))

    @router.get(
        "/models/{model}/versions/{version}/report",
        response_class=HTMLResponse,
        responses=documented(404, 409, 503, 504),
    )
    async def show_report(model: str, version: str) -> Response:
        """Return the report of a version."""
        report = await read(lambda: catalog.read_report(path, model, find(model, version)))
        if report is None:
            raise Problem(
                404,
                f"version {version} of '{model}' has no report: run 'ranker report' before 'ranker freeze RUN'",
            )
        return HTMLResponse(report, headers={"Content-Security-Policy": REPORT_POLICY})

    @router.get("/loop")
    async def show_loop() -> LoopState:
        """Return which parts of the loop are on."""
        served, feedback = settings.served_log, settings.feedback_dir
        encoders = {name: routing.current.encoder for name, routing in models.served.items()}
        as_of = {name: encoder.counters_as_of(None) for name, encoder in encoders.items()}
        return LoopState(
            served_log=ServedLogState(target=name_of(served), share=settings.served_share) if served else None,
            feedback=FeedbackTarget(target=name_of(feedback)) if feedback else None,
            feature_store=describe_store(settings),
            counters={name: CountersState(as_of=time) for name, time in as_of.items() if time is not None},
            limits={"max_candidates": settings.max_candidates, "max_deadline_ms": settings.max_deadline_ms},
        )

    @trials.post(PREFIX + "/models/{model}/rank", **RANKING)
    async def rank_on_trial(http: Request, model: str) -> Response:
        """Rank candidates as /v1/models/{model}/rank does, but keep nothing of it: nobody sees these candidates."""
        return await handler.respond(http, models.get(model), trial=True)

    return [router, trials]


def describe_inputs(schema: Schema) -> list[dict[str, Any]]:
    """Describe the features that a request may send besides ids."""
    ids = {schema.id_column(owner) for owner in schema.owners}
    return [
        {
            "name": feature.column,
            "counter": feature.name in schema.counter_columns,
            **feature.model_dump(include={"kind", "owner", "max_length"}),
        }
        for feature in schema.inputs
        if feature.column not in ids
    ]


def summarize(evaluation: dict[str, Any]) -> Quality:
    """Return the headline metrics of an evaluation, and the verdict on its baselines."""
    tasks = {}
    for name, metrics in evaluation["tasks"].items():
        for metric in HEADLINE_METRICS:
            if metric in metrics:
                value, interval = metrics[metric], metrics.get(f"{metric}_interval")
                tasks[name] = TaskQuality(metric=metric, value=value, interval=interval, mean_score=mean_score(metrics))
    return Quality(
        rows=evaluation["rows"],
        users=evaluation.get("users", 1.0),
        tasks=tasks,
        verdict=verdict(evaluation.get("baselines")),
    )


def mean_score(metrics: dict[str, Any]) -> float | None:
    """Return the mean score of a binary task; its calibration is the sum of the scores divided by the positives."""
    calibration = metrics.get("calibration")
    return None if calibration is None else calibration * metrics["positives"] / metrics["rows"]


def name_of(target: LogTarget) -> str:
    """Name the destination of a log, without the path of a folder, the servers of a topic or the name of a bucket."""
    if isinstance(target, KafkaAddress):
        return f"topic {target.topic}"
    if isinstance(target, ObjectLocation):
        _, _, path = target.text.partition("://")[2].partition("/")
        return f"object storage {Path(path).name}".rstrip()
    return f"folder {target.name}"


def describe_store(settings: Settings) -> FeatureStoreState | None:
    """Describe the feature store without its credentials; None if there is none."""
    if settings.store is None:
        return None
    return FeatureStoreState(address=redact_address(settings.store.get_secret_value()))
