"""Prometheus metrics of one process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from service.versions.served import Served

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
DIFFERENCES = (0, 0.00001, 0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 10)


class Metrics:
    """What the service counts; a registry of its own, so that two apps in one process do not mix."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Counter("ranker_requests", "Ranking requests by status code.", ["status"], registry=registry)
        self.seconds = Histogram(
            "ranker_request_seconds",
            "Time from a ranking request's arrival to its answer.",
            buckets=SECONDS,
            registry=registry,
        )
        self.rows = Counter("ranker_rows_scored", "Candidates scored.", ["model"], registry=registry)
        self.missing = Counter(
            "ranker_missing_features",
            "Feature values known neither in the request nor by id.",
            ["model"],
            registry=registry,
        )
        self.in_flight = Gauge("ranker_requests_in_flight", "Ranking requests being worked on.", registry=registry)
        self.models = Gauge(
            "ranker_model_info",
            "1 for each version being served, 0 for one that was.",
            ["model", "version", "role"],
            registry=registry,
        )
        self.load_seconds = Gauge("ranker_model_load_seconds", "Time to load and verify.", ["model"], registry=registry)
        self.load_failures = Counter(
            "ranker_model_load_failures", "Versions that were refused.", ["model"], registry=registry
        )
        self.shadowed = Counter(
            "ranker_shadow_requests",
            "Requests that a shadow was to score: scored, dropped under load, or failed.",
            ["model", "outcome"],
            registry=registry,
        )
        self.shadow_difference = Histogram(
            "ranker_shadow_score_difference",
            "Between a shadow's scores and those that were served, absolute, mean of a request's candidates.",
            ["model", "task"],
            buckets=DIFFERENCES,
            registry=registry,
        )
        self.experts = Gauge("ranker_experts", "Experts in the frozen graph.", ["model"], registry=registry)

    def loaded(self, served: Served, role: str = "current") -> None:
        """Notes a version that is now served in this role."""
        self.models.labels(served.name, served.version, role).set(1)
        self.load_seconds.labels(served.name).set(served.load_seconds)
        self.experts.labels(served.name).set(len(served.ranker.selection.experts_used))

    def unloaded(self, model: str, version: str, role: str) -> None:
        """Notes a version that is no longer served in this role."""
        self.models.labels(model, version, role).set(0)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
