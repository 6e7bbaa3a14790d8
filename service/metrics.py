"""Prometheus metrics of one process."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from service.repository import Served

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """What the service counts; a registry of its own, so that two apps in one process do not mix."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Counter("ranker_requests", "Ranking requests by status code.", ["status"], registry=registry)
        self.rejections = Counter(
            "ranker_rejections", "Requests and connections turned away, by reason.", ["reason"], registry=registry
        )
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
            "ranker_model_info", "1 for each version being served.", ["model", "version"], registry=registry
        )
        self.load_seconds = Gauge("ranker_model_load_seconds", "Time to load and verify.", ["model"], registry=registry)
        self.experts = Gauge("ranker_experts", "Experts in the frozen graph.", ["model"], registry=registry)

    def loaded(self, served: Served) -> None:
        """Notes a model that is now served."""
        self.models.labels(served.name, served.version).set(1)
        self.load_seconds.labels(served.name).set(served.load_seconds)
        self.experts.labels(served.name).set(len(served.ranker.selection.experts_used))

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
