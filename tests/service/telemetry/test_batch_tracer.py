"""Spans of batches as received by an OTLP endpoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from service.app import create_app
from service.engine import engine as engine_module
from service.engine.scoring import score_batch
from service.settings import Settings
from service.telemetry import tracing
from service.telemetry.stage_timer import StageTimer
from service.telemetry.tracing import RequestTracer
from tests.support.otlp import OtlpReceiver, attributes
from tests.support.waiting import wait_until

SAMPLED, UNSAMPLED = (f"00-{'ab' * 16}-{'cd' * 8}-{flags}" for flags in ("01", "00"))


@pytest.fixture
def tracer(receiver: OtlpReceiver) -> Iterator[RequestTracer]:
    """A tracer that sends to the receiver when it is closed."""
    tracer = tracing.from_environment()
    assert tracer is not None
    yield tracer
    tracer.close()


def finish(tracer: RequestTracer, timer: StageTimer, traceparent: str = SAMPLED) -> None:
    """Record the end of a request."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/rank",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(b"traceparent", traceparent.encode())],
        "state": {"request_id": "r-1"},
    }
    tracer.record(scope, 200, {}, timer, timer.arrived)


def started(tracer: RequestTracer) -> StageTimer:
    """Record the begin of a request."""
    tracer.batches.request_started(timer := StageTimer())
    return timer


def links(span: Span) -> list[tuple[bytes, bytes]]:
    return [(link.trace_id, link.span_id) for link in span.links]


def ids(*spans: Span) -> list[tuple[bytes, bytes]]:
    return [(span.trace_id, span.span_id) for span in spans]


def test_request_in_several_batches_is_linked_with_each(
    receiver: OtlpReceiver, repository: Path, request_body: dict[str, Any]
) -> None:
    with TestClient(create_app(Settings(repository=repository, max_batch_rows=5))) as client:
        client.post("/v1/rank", json=request_body | {"tasks": ["like", "click"]})
    (server,) = receiver.server_spans()
    batches = receiver.batch_spans()
    assert [attributes(batch) for batch in batches] == [
        {
            "ranker.model": "feed",
            "ranker.version": "1",
            "ranker.tasks": ["click", "like"],
            "ranker.requests": 1,
            "ranker.rows": rows,
        }
        for rows in (5, 5, 2)
    ]
    assert [links(batch) for batch in batches] == [ids(server)] * 3
    assert links(server) == ids(*batches)
    assert {batch.kind for batch in batches} == {Span.SPAN_KIND_INTERNAL}
    assert {batch.parent_span_id for batch in batches} == {b""}
    assert len({server.trace_id, *(batch.trace_id for batch in batches)}) == 4
    times = [time for batch in batches for time in (batch.start_time_unix_nano, batch.end_time_unix_nano)]
    assert times == sorted(times)
    assert server.start_time_unix_nano < times[0]
    assert times[-1] < server.end_time_unix_nano


def test_batch_of_concurrent_requests_is_linked_with_the_sampled_ones(
    receiver: OtlpReceiver, repository: Path, request_body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def score(*arguments: Any, **options: Any) -> Any:
        release.wait(30)
        return score_batch(*arguments, **options)

    monkeypatch.setattr(engine_module, "score_batch", score)
    with TestClient(create_app(Settings(repository=repository))) as client, ThreadPoolExecutor(4) as pool:

        def send(traceparent: str) -> None:
            waiting = f"ranker_queue_rows {12.0 * len(requests)}"
            requests.append(
                pool.submit(client.post, "/v1/rank", json=request_body, headers={"traceparent": traceparent})
            )
            wait_until(lambda: waiting not in client.get("/metrics").text)

        requests: list[Any] = []
        for traceparent in (UNSAMPLED, SAMPLED, UNSAMPLED, SAMPLED):  # the first one is a batch
            send(traceparent)
        release.set()
        assert [request.result().status_code for request in requests] == [200] * 4
    (batch,) = receiver.batch_spans()
    servers = receiver.server_spans()
    assert len(servers) == 2
    assert sorted(links(batch)) == sorted(ids(*servers))
    assert [links(server) for server in servers] == [ids(batch)] * 2
    assert attributes(batch).items() >= {"ranker.requests": 3, "ranker.rows": 36}.items()


def test_failed_batch_has_the_class_of_its_exception(
    receiver: OtlpReceiver, repository: Path, request_body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(Settings(repository=repository))

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError("a secret")

    monkeypatch.setattr(engine_module, "score_batch", fail)
    with TestClient(app) as client:
        assert client.post("/v1/rank", json=request_body).status_code == 500
    (batch,) = receiver.batch_spans()
    assert attributes(batch)["error.type"] == "MemoryError"
    assert batch.status.code == Status.STATUS_CODE_ERROR
    assert links(batch) == ids(*receiver.server_spans())
    assert "secret" not in str(batch)


def test_batch_is_sent_when_its_last_request_has_finished(receiver: OtlpReceiver, tracer: RequestTracer) -> None:
    first, second, unsampled = started(tracer), started(tracer), started(tracer)
    with tracer.batches.batch([first, second, unsampled], rows=3):
        pass
    finish(tracer, first)
    finish(tracer, second)
    tracer._provider.force_flush()
    assert receiver.batch_spans() == []
    finish(tracer, unsampled, UNSAMPLED)
    tracer.close()
    (batch,) = receiver.batch_spans()
    assert links(batch) == ids(*receiver.server_spans())


def test_batch_omits_requests_that_were_not_started_or_finish_before_it(
    receiver: OtlpReceiver, tracer: RequestTracer
) -> None:
    trial, cancelled, timer = StageTimer(), started(tracer), started(tracer)
    with tracer.batches.batch([trial, cancelled, timer], rows=3):
        finish(tracer, cancelled)
    finish(tracer, timer)
    tracer.close()
    (batch,) = receiver.batch_spans()
    (_, server) = sorted(receiver.server_spans(), key=lambda span: len(span.links))
    assert links(batch) == ids(server)
    assert links(server) == ids(batch)


def test_sampler_of_the_requests_decides_on_batches(
    receiver: OtlpReceiver, repository: Path, request_body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with TestClient(create_app(Settings(repository=repository))) as client:
        client.post("/v1/rank", json=request_body)
        client.post("/v1/rank", json=request_body, headers={"traceparent": SAMPLED})
    assert len(receiver.server_spans()) == len(receiver.batch_spans()) == 1
