"""Prometheus metrics of a service, whether it is one process or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.multiprocess import MultiProcessCollector

from service.engine.model import LoadedModel
from service.telemetry.bulk_histogram import BulkHistogram
from service.telemetry.multiprocess import Processes, shared_folder
from service.telemetry.stage_timer import STAGES, Stage

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
STAGE_SECONDS = (0.0001, 0.00025, 0.0005, *SECONDS)
ROWS = (1, 10, 25, 50, 100, 200, 300, 400, 500, 1000, 2500)
SCORES = (0, 0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 2, 3, 5, 10, 100, 1000)
"""Fine where probabilities lie, rare ones too; coarse for what regressions give."""
DIFFERENCES = (0, 0.00001, 0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 10)

REJECTIONS = {
    401: "unauthorised",
    403: "forbidden",
    408: "slow_body",
    413: "too_large",
    429: "queue_full",
    499: "client_gone",
    503: "not_ready",
    504: "deadline",
}
"""Answers by which the service protects itself: status → reason. Wrong requests (400, 404, 422) are not among them."""


class Metrics:
    """What the service counts.

    One process has a registry of its own, so that two apps in it do not mix. Several share files (``shared_metrics``);
    each then answers for all of them. Labels cannot be taken back there: what is no longer served is 0.

    Attributes:
        requests: by status and model; empty if they named none that is served, or were not read.
        rejections: by reason.
        fallbacks: by store and reason.
        load_failures: by model.
        queue_rows: candidates that wait for their turn or are being scored.
        in_flight: ranking requests being worked on.
        shadowed: by model and outcome.
        shadow_difference: by model and task.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series a counter, that nobody reads
        folder = shared_folder()
        self._registry = CollectorRegistry()
        registry = self._registry if folder is None else None
        if folder is None:
            ProcessCollector(registry=registry)
        else:
            MultiProcessCollector(self._registry, str(folder))  # type: ignore[no-untyped-call]
            self._registry.register(Processes(folder))

        def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"ranker_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
            return Histogram(f"ranker_{name}", text, labels, buckets=buckets, registry=registry)

        def total(name: str, text: str) -> Gauge:
            return Gauge(f"ranker_{name}", text, registry=registry, multiprocess_mode="livesum")

        def latest(name: str, text: str, labels: Sequence[str]) -> Gauge:
            return Gauge(f"ranker_{name}", text, labels, registry=registry, multiprocess_mode="livemostrecent")

        self.requests = counter("requests", "Ranking requests by status code.", ["status", "model"])
        self.rejections = counter("rejections", "Requests and connections turned away, by reason.", ["reason"])
        self._rows = counter("rows_scored", "Candidates scored.", ["model", "version"])
        self._missing = counter("missing_features", "Feature values known neither in the request nor by id.", ["model"])
        self.fallbacks = counter(
            "fallbacks", "Requests for which a store did not give what it should have, by reason.", ["store", "reason"]
        )
        self._seconds = histogram("request_seconds", "From a ranking request's arrival to its answer.", SECONDS)
        self._stages = histogram("stage_seconds", "Of a ranking request, by stage.", STAGE_SECONDS, ["stage"])
        self._batch_rows = histogram("batch_rows", "Candidates scored at a time.", ROWS)
        self.queue_rows = total("queue_rows", "Candidates that wait for their turn or are being scored.")
        self.in_flight = total("requests_in_flight", "Ranking requests being worked on.")
        self._models = Gauge(
            "ranker_model_info",
            "1 for each version being served, 0 for one that was.",
            ["model", "version", "role"],
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._load_seconds = latest("model_load_seconds", "To load and verify what was loaded last.", ["model"])
        self.load_failures = counter("model_load_failures", "Versions that were refused.", ["model"])
        self._experts = latest("experts", "Experts in the frozen graph.", ["model"])
        self._score = BulkHistogram("ranker_score", "Of a sample of each batch.", SCORES, folder)
        self._registry.register(self._score)
        self.shadowed = counter(
            "shadow_requests",
            "Requests that a shadow was to score: scored, dropped under load, or failed.",
            ["model", "outcome"],
        )
        self.shadow_difference = histogram(
            "shadow_score_difference",
            "Between a shadow's scores and those that were served, absolute, mean of a request's candidates.",
            DIFFERENCES,
            ["model", "task"],
        )
        self._request = cache(self.requests.labels)  # finding a child costs more than counting in it
        self._scored = cache(self._rows.labels)
        self._lacking = cache(self._missing.labels)
        self._stage = {stage: self._stages.labels(stage) for stage in STAGES}
        self._rejection = {status: self.rejections.labels(reason) for status, reason in REJECTIONS.items()}

    def loaded(self, served: LoadedModel, role: str = "current") -> None:
        """Notes a version that is now served in this role: current, canary or shadow."""
        self._models.labels(served.name, served.version, role).set(1)
        self._load_seconds.labels(served.name).set(served.load_seconds)
        self._experts.labels(served.name).set(len(served.ranker.selection.experts_used))
        self._scored(served.name, served.version), self._lacking(served.name)  # from 0 on, for rates

    def unloaded(self, model: str, version: str, role: str) -> None:
        """Notes a version that is no longer served in this role."""
        self._models.labels(model, version, role).set(0)

    def answered(self, status: int, model: str, seconds: float, stages: Mapping[Stage, float]) -> None:
        """Counts a ranking request that has been answered.

        Args:
            status: of the answer.
            model: that was asked; empty if the request named none that is served.
            seconds: since its arrival.
            stages: that it passed → seconds.
        """
        self._request(str(status), model).inc()
        self._seconds.observe(seconds)
        for stage, duration in stages.items():
            self._stage[stage].observe(duration)
        if status in self._rejection:
            self._rejection[status].inc()

    def scored(self, served: LoadedModel, tasks: Sequence[str], scores: npt.NDArray[np.float32], missing: int) -> None:
        """Counts a batch.

        Args:
            served: the version that scored it.
            tasks: names of the columns of ``scores``.
            scores: [candidates, tasks].
            missing: features that the candidates lack, over all of them.
        """
        self._batch_rows.observe(len(scores))
        self._scored(served.name, served.version).inc(len(scores))
        if missing:
            self._lacking(served.name).inc(missing)
        self._score.observe(served.name, tasks, scores)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
