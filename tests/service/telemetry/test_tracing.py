"""Traces as received by an OTLP endpoint."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from ranking.errors import ConfigError
from service.app import create_app
from service.engine.engine import Engine
from service.settings import Settings
from service.telemetry import tracing
from tests.support.otlp import OtlpReceiver, attributes
from tests.support.ports import occupied_port
from tests.support.waiting import wait_until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def rank_and_shut_down(
    repository: Path, body: dict[str, Any], headers: dict[str, str], path: str = "/v1/rank"
) -> float:
    """Send a request to a new service, shut it down, and return the seconds that the shutdown took."""
    with TestClient(create_app(Settings(repository=repository, max_batch_rows=5))) as client:
        client.get("/v2/health/ready")
        response = client.post(path, json=body, headers=headers)
        assert response.headers.get("traceparent") == headers.get("traceparent")
        shutdown = time.monotonic()
    return time.monotonic() - shutdown


def sending_threads() -> list[threading.Thread]:
    """Return the threads that send spans."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("OtelBatchSpan")]


def test_request_span_has_the_callers_parent_and_a_child_per_stage(
    receiver: OtlpReceiver, repository: Path, request_body: dict[str, Any]
) -> None:
    before = time.time_ns()
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-ID": "abc-1"}
    rank_and_shut_down(repository, request_body | {"tasks": ["click"]}, headers, "/v1/models/feed/rank")
    (server,) = receiver.server_spans()
    stages = [span for span in receiver.spans if span.parent_span_id == server.span_id]
    stages.sort(key=lambda span: span.end_time_unix_nano)
    assert (server.name, server.kind) == ("POST /v1/models/{model}/rank", Span.SPAN_KIND_SERVER)
    assert (server.trace_id.hex(), server.parent_span_id.hex()) == (TRACE, PARENT)
    assert attributes(server) == {
        "http.request.method": "POST",
        "http.route": "/v1/models/{model}/rank",
        "http.response.status_code": 200,
        "url.path": "/v1/models/feed/rank",
        "url.scheme": "http",
        "server.address": "testserver",
        "server.port": 80,
        "client.address": "testclient",
        "network.protocol.version": "1.1",
        "user_agent.original": "testclient",
        "ranker.request_id": "abc-1",
        "ranker.model": "feed",
        "ranker.version": "1",
        "ranker.candidates": 12,
        "ranker.tasks": ["click"],
    }
    # 12 candidates in batches of 5
    assert [span.name for span in stages] == ["parse", *["queue", "look-up", "forward"] * 3, "write"]
    assert {span.trace_id for span in stages} == {server.trace_id}
    ends = [server.start_time_unix_nano, *(span.end_time_unix_nano for span in stages)]
    assert [span.start_time_unix_nano for span in stages] == pytest.approx(ends[:-1], abs=1000)
    assert ends == sorted(ends)
    assert ends[-1] <= server.end_time_unix_nano
    assert before - 10**8 < server.start_time_unix_nano < server.end_time_unix_nano < time.time_ns() + 10**8
    assert receiver.resource()["service.name"] == "dselect-ranker"


def test_request_with_an_unsampled_traceparent_sends_no_spans(
    receiver: OtlpReceiver, repository: Path, request_body: dict[str, Any]
) -> None:
    rank_and_shut_down(repository, request_body, {"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert receiver.spans == []


def test_request_without_traceparent_starts_a_trace(
    receiver: OtlpReceiver, repository: Path, request_body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "feed-ranker")
    rank_and_shut_down(repository, request_body, {})
    (server,) = receiver.server_spans()
    assert server.parent_span_id == b""
    assert receiver.resource()["service.name"] == "feed-ranker"


def test_rejected_request_span_has_its_status_code(
    receiver: OtlpReceiver, repository: Path, request_body: dict[str, Any]
) -> None:
    rank_and_shut_down(repository, request_body | {"deadline_ms": 0.001}, {})
    (server,) = receiver.server_spans()
    assert attributes(server).items() >= {"http.response.status_code": 504, "error.type": "504"}.items()
    assert server.status.code == Status.STATUS_CODE_ERROR


def test_invalid_request_span_is_not_an_error(receiver: OtlpReceiver, repository: Path) -> None:
    rank_and_shut_down(repository, {"items": 3}, {})
    (server,) = receiver.server_spans()
    assert attributes(server)["http.response.status_code"] == 422
    assert "error.type" not in attributes(server)
    assert server.status.code == Status.STATUS_CODE_UNSET


def test_request_span_after_an_exception_has_its_status_code_as_error_type(
    receiver: OtlpReceiver, repository: Path, request_body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(Engine, "rank", fail)
    rank_and_shut_down(repository, request_body, {})
    (server,) = receiver.server_spans()
    assert attributes(server).items() >= {"http.response.status_code": 500, "error.type": "500"}.items()
    assert server.status.code == Status.STATUS_CODE_ERROR
    assert "secret" not in str(server)


def test_unresponsive_receiver_fails_no_request_and_delays_shutdown_briefly(
    repository: Path, request_body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with occupied_port() as port:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
        monkeypatch.setattr(tracing, "FLUSH_SECONDS", 0.3)
        assert rank_and_shut_down(repository, request_body, {}) < 50
    # no attempt follows the one that the closed port has ended
    wait_until(lambda: not sending_threads(), lambda: str(sending_threads()), timeout=20)


def test_from_environment_without_endpoint_or_disabled_returns_none() -> None:
    assert tracing.from_environment({}) is None
    disabled = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"}
    assert tracing.from_environment(disabled) is None


def test_from_environment_with_unsupported_protocol_raises_config_error() -> None:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' is not supported"):
        tracing.from_environment(environ)


def test_from_environment_without_opentelemetry_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT is set.*dselect-ranker\[tracing\]"):
        tracing.from_environment({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"})
