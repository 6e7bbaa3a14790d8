"""Prometheus metrics of a service with one or several processes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from service.telemetry.bulk_histogram import BulkHistogram
from service.telemetry.shared_metrics import SharedCollector, SharedValues, WorkerProcessCollector, shared_folder
from service.telemetry.stage_timer import STAGES, Stage

REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
STAGE_BUCKETS = (0.0001, 0.00025, 0.0005, *REQUEST_BUCKETS)
BATCH_ROWS_BUCKETS = (1, 10, 25, 50, 100, 200, 300, 400, 500, 1000, 2500)
PROBABILITY_BUCKETS = (0, 0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1)
SCORE_BUCKETS = (*PROBABILITY_BUCKETS, 2, 3, 5, 10, 100, 1000)
"""The buckets above 1 are for the predictions of regression tasks."""
SCORE_DIFFERENCE_BUCKETS = (0, 0.00001, 0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 10)

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
"""Status code → reason label. Only rejections that protect the service count, not invalid requests (400, 404, 422)."""

EXPLAIN = "explain"
"""Reason label of requests that are rejected with 429 because too many others wait for contributions."""

FEEDBACK_OUTCOMES = {
    202: "accepted",
    400: "invalid",
    401: "unauthorised",
    403: "forbidden",
    404: "disabled",
    405: "invalid",
    408: "slow_body",
    413: "too_large",
    415: "invalid",
    422: "invalid",
    429: "queue_full",
    499: "client_gone",
    503: "not_written",
}
"""Status code → outcome of a feedback request, unless the request has a more specific reason of rejection."""

ServedDrop = Literal["queue_full", "folder_full", "write_failed", "lost"]
"""Reasons for which the served log lacks requests."""


def worker_restarts(registry: CollectorRegistry | None) -> Counter:
    """Create the counter of replaced workers, by reason; the supervisor counts, and workers expose it."""
    restarts = Counter(
        "ranker_worker_restarts",
        "Worker processes that died or hung, and were replaced.",
        ["reason"],
        registry=registry,
    )
    for reason in ("died", "hung"):
        restarts.labels(reason)
    return restarts


class UnsharedSeriesCollector(Collector):
    """Counts the values of this process that no process exposes, because the shared folder had no room.

    Args:
        values: values of this process, or None if it is the only process. If their folder was removed, one more counts.
        histogram: histogram with a store of its own.
    """

    def __init__(self, values: SharedValues | None, histogram: BulkHistogram) -> None:
        self._values, self._histogram = values, histogram

    def collect(self) -> Iterator[Metric]:
        """Yield the number, of this process only."""
        documentation = "Values that this process could not store in the shared metrics folder."
        family = GaugeMetricFamily("ranker_unshared_metrics", documentation, labels=["pid"])
        if self._values is None:
            family.add_metric([], 0)
        else:
            removed = int(not self._values.folder.is_dir())
            family.add_metric([str(os.getpid())], self._values.unshared + self._histogram.unshared + removed)
        yield family


class Metrics:
    """Metrics of the service.

    A single process uses its own registry, so that several apps in one process have separate metrics. Several processes
    share files (``shared_metrics``), and each process exposes the totals of all. Shared files cannot remove a label
    combination: the gauge of a version that is no longer served is set to 0.

    Attributes:
        requests: ranking requests by status code and model. The model is empty if the request named no served model or
            was not parsed.
        rejections: rejected requests and connections by reason.
        fallbacks: requests for which a feature store failed to supply features, by store and reason.
        load_failures: rejected versions by model.
        repository_read: Unix time at which all releases of the repository were last read.
        queue_rows: candidates that wait or are being scored.
        queue_explanations: requests that wait for contributions, from before they are scored.
        in_flight: ranking requests in progress.
        scoring_seconds: seconds that the current batch has been in progress.
        buffered_body_bytes: bytes of request bodies that are held.
        shadow_requests: requests for a shadow version by model and outcome.
        shadow_difference: absolute difference between a shadow's scores and the served scores, by model and task.
        feedback_events: events of feedback requests whose body was read, by outcome and reason.
        feedback_bytes: bytes of feedback written to files or the topic.
        feedback_failures: failures of the feedback folder or topic by operation.
        feedback_queue_bytes: bytes of feedback requests that wait to be written.
        feedback_folder_bytes: size of the feedback files at the last scan of their folder.
        feedback_folder_limit_bytes: maximum size of the feedback files, 0 without a feedback folder.
        feedback_unfinished_since: Unix time of the creation of the oldest unfinished feedback file, or infinity.
        served_requests: requests in finished files of the served log.
        served_dropped: requests that the served log lacks by reason.
        served_bytes: bytes of finished files of the served log.
        served_cpu: CPU seconds of the thread that writes the served log.
        served_finished: Unix time at which the last file of the served log was finished, or of the start.
        served_queue_rows: candidates that wait to be written to the served log.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # would add one unused series per counter
        folder = shared_folder()
        self._registry = CollectorRegistry()
        registry = self._registry if folder is None else None
        shared_values = None if folder is None else SharedValues(folder)
        if folder is None or shared_values is None:
            ProcessCollector(registry=registry)
        else:
            shared_values.install()
            self._registry.register(SharedCollector(folder))
            self._registry.register(WorkerProcessCollector(folder))

        def counter(name: str, documentation: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"ranker_{name}", documentation, labels, registry=registry)

        def histogram(name: str, documentation: str, buckets: Sequence[float], labels: Sequence[str] = ()) -> Histogram:
            return Histogram(f"ranker_{name}", documentation, labels, buckets=buckets, registry=registry)

        def total(name: str, documentation: str) -> Gauge:
            return Gauge(f"ranker_{name}", documentation, registry=registry, multiprocess_mode="livesum")

        def latest(name: str, documentation: str, labels: Sequence[str]) -> Gauge:
            return Gauge(f"ranker_{name}", documentation, labels, registry=registry, multiprocess_mode="livemostrecent")

        self.requests = counter("requests", "Ranking requests by status code.", ["status", "model"])
        self.rejections = counter("rejections", "Rejected requests and connections by reason.", ["reason"])
        self._rows = counter("rows_scored", "Candidates scored.", ["model", "version"])
        self._missing = counter("missing_features", "Feature values found neither in the request nor by id.", ["model"])
        self._unseen = counter(
            "unseen_ids",
            "Candidates scored whose user or item the model has never seen.",
            ["model", "entity"],
        )
        self.fallbacks = counter(
            "fallbacks", "Requests for which a store failed to supply features, by reason.", ["store", "reason"]
        )
        self._seconds = histogram(
            "request_seconds", "Seconds from a ranking request's arrival to its response.", REQUEST_BUCKETS
        )
        self._stages = histogram("stage_seconds", "Seconds per stage of a ranking request.", STAGE_BUCKETS, ["stage"])
        self._batch_rows = histogram("batch_rows", "Candidates per batch.", BATCH_ROWS_BUCKETS)
        self.queue_rows = total("queue_rows", "Candidates that wait or are being scored.")
        self.queue_explanations = total("queue_explanations", "Requests that wait for contributions of features.")
        self.in_flight = total("requests_in_flight", "Ranking requests in progress.")
        self.buffered_body_bytes = total("buffered_body_bytes", "Bytes of request bodies that are held.")
        self._models = Gauge(
            "ranker_model_info",
            "1 for each version being served, 0 for versions that were served before.",
            ["model", "version", "role"],
            registry=registry,
            multiprocess_mode="livemax",
        )
        self._load_seconds = latest(
            "model_load_seconds", "Seconds to load and verify the most recently loaded version.", ["model"]
        )
        self.load_failures = counter("model_load_failures", "Rejected versions.", ["model"])
        self.repository_read = Gauge(
            "ranker_repository_read_timestamp_seconds",
            "Unix time at which all releases of the repository were last read.",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self._experts = latest("experts", "Experts in the frozen graph.", ["model"])
        self._score = BulkHistogram("ranker_score", "Scores, a sample of each batch.", SCORE_BUCKETS, folder)
        self._registry.register(self._score)
        self._registry.register(UnsharedSeriesCollector(shared_values, self._score))
        self.shadow_requests = counter(
            "shadow_requests",
            "Requests for a shadow version by outcome: scored, dropped under load, or failed.",
            ["model", "outcome"],
        )
        self.shadow_difference = histogram(
            "shadow_score_difference",
            "Absolute difference between a shadow's scores and the served scores, mean per request.",
            SCORE_DIFFERENCE_BUCKETS,
            ["model", "task"],
        )
        self._feedback_requests = counter("feedback_requests", "Feedback requests by outcome.", ["outcome"])
        self.feedback_events = counter(
            "feedback_events",
            "Events of feedback requests that were read, by outcome and reason.",
            ["outcome", "reason"],
        )
        self.feedback_bytes = counter("feedback_bytes", "Bytes of feedback written to files or the topic.")
        self.feedback_failures = counter(
            "feedback_failures",
            "Failures of the feedback folder or topic by operation: write, finish, scan or lost.",
            ["operation"],
        )
        self.feedback_queue_bytes = total("feedback_queue_bytes", "Bytes of feedback that wait to be written.")
        self.feedback_folder_bytes = Gauge(
            "ranker_feedback_folder_bytes",
            "Size of the feedback files.",
            registry=registry,
            multiprocess_mode="livemostrecent",
        )
        self.feedback_folder_limit_bytes = Gauge(
            "ranker_feedback_folder_limit_bytes",
            "Maximum size of the feedback files, 0 without a feedback folder.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        self.feedback_unfinished_since = Gauge(
            "ranker_feedback_unfinished_since_timestamp_seconds",
            "Creation time of the oldest unfinished feedback file, +Inf if there is none.",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self.feedback_unfinished_since.set(math.inf)
        self.served_requests = counter("served_requests", "Requests in finished files of the served log.")
        self.served_dropped = counter(
            "served_dropped",
            "Requests that the served log lacks by reason: queue_full, folder_full, write_failed or lost.",
            ["reason"],
        )
        for reason in get_args(ServedDrop):
            self.served_dropped.labels(reason)  # 0 is different from unknown
        self.served_bytes = counter("served_bytes", "Bytes of finished files of the served log.")
        self.served_cpu = counter("served_cpu_seconds", "CPU time of the thread that writes the served log.")
        self.served_finished = Gauge(
            "ranker_served_finished_timestamp_seconds",
            "Unix time at which the last file of the served log was finished, or of the start.",
            registry=registry,
            multiprocess_mode="livemin",
        )
        self.served_queue_rows = total("served_queue_rows", "Candidates that wait to be written to the served log.")
        worker_restarts(registry)
        self.scoring_seconds = Gauge(
            "ranker_scoring_seconds",
            "Seconds that the current batch has been in progress, 0 if none; the maximum of all processes.",
            registry=registry,
            multiprocess_mode="livemax",
        )
        # Looking up a labeled child costs more than counting in it.
        self._requests_of = cache(self.requests.labels)
        self._rows_of = cache(self._rows.labels)
        self._missing_of = cache(self._missing.labels)
        self._unseen_of = cache(self._unseen.labels)
        self._stage = {stage: self._stages.labels(stage) for stage in STAGES}
        self._rejection = {status: self.rejections.labels(reason) for status, reason in REJECTIONS.items()}
        self._rejection_of = cache(self.rejections.labels)
        self._rejection_of(EXPLAIN)  # 0 is different from unknown
        self._feedback_requests_of = cache(self._feedback_requests.labels)

    def record_loaded(self, model: str, version: str, role: str, load_seconds: float, num_experts: int) -> None:
        """Record that a version is now served in a role.

        Args:
            model: name of the model.
            version: version of the model.
            role: ``current``, ``canary`` or ``shadow``.
            load_seconds: seconds that loading, verification and warm-up took.
            num_experts: number of experts in the frozen graph.
        """
        self._models.labels(model, version, role).set(1)
        self._load_seconds.labels(model).set(load_seconds)
        self._experts.labels(model).set(num_experts)
        # Create the counters at 0, so that rates start there.
        self._rows_of(model, version), self._missing_of(model)
        self._unseen_of(model, "user"), self._unseen_of(model, "item")

    def record_unloaded(self, model: str, version: str, role: str) -> None:
        """Record that a version is no longer served in a role."""
        self._models.labels(model, version, role).set(0)

    def record_request(
        self, status: int, model: str, seconds: float, stages: Mapping[Stage, float], rejection: str | None = None
    ) -> None:
        """Record a ranking request after its response.

        Args:
            status: status code of the response.
            model: name of the model, empty if the request named no served model.
            seconds: seconds since the request's arrival.
            stages: seconds per completed stage.
            rejection: reason of a rejection, if it is more specific than that of the status in ``REJECTIONS``.
        """
        self._requests_of(str(status), model).inc()
        self._seconds.observe(seconds)
        for stage, duration in stages.items():
            self._stage[stage].observe(duration)
        if rejection is not None:
            self._rejection_of(rejection).inc()
        elif status in self._rejection:
            self._rejection[status].inc()

    def record_feedback_request(self, status: int, rejection: str | None) -> None:
        """Record a feedback request after its response.

        Args:
            status: status code of the response.
            rejection: reason of a rejection, if it is more specific than that of the status in ``FEEDBACK_OUTCOMES``.
        """
        outcome = rejection or FEEDBACK_OUTCOMES.get(status, "failed")
        self._feedback_requests_of(outcome).inc()

    def record_batch(
        self,
        model: str,
        version: str,
        tasks: Sequence[str],
        scores: npt.NDArray[np.float32],
        missing: int,
        unseen: Mapping[str, int],
    ) -> None:
        """Record a scored batch.

        Args:
            model: name of the model.
            version: version of the model.
            tasks: names of the columns of ``scores``.
            scores: [candidates, tasks].
            missing: total number of missing feature values of the candidates, without unseen ids.
            unseen: number of candidates with an unseen id, by entity (user, item).
        """
        self._batch_rows.observe(len(scores))
        self._rows_of(model, version).inc(len(scores))
        if missing:
            self._missing_of(model).inc(missing)
        for entity, count in unseen.items():
            if count:
                self._unseen_of(model, entity).inc(count)
        self._score.observe(model, tasks, scores)

    def exposition(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)
