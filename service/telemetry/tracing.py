"""OpenTelemetry traces: a span for each ranking request and one for each of its stages, made once it is answered."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import Scope

from ranking.errors import ConfigError
from service.telemetry.request_info import request_fields
from service.telemetry.stage_timer import StageTimer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SERVICE = "dselect-ranker"
"""Name in the traces, unless OTEL_SERVICE_NAME gives another."""

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

FLUSH_SECONDS = 3.0
"""So long the end of the service waits for spans that were not sent yet."""


class Traces:
    """Sends spans from a thread of its own; what cannot be sent is dropped and hurts no request.

    Args:
        provider: samples spans and sends them; closed with this.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, scope: Scope, status: int, stages: StageTimer, ended: float) -> None:
        """Spans of a request that has been answered, below the one that its ``traceparent`` names.

        Args:
            scope: of the request.
            status: of the answer.
            stages: that it passed.
            ended: ``time.monotonic()`` of the answer.
        """
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        method, route = scope["method"], getattr(scope.get("route"), "path", None)
        epoch = time.time() - time.monotonic()
        span = self._tracer.start_span(
            method if route is None else f"{method} {route}",
            self._propagator.extract(Headers(scope=scope)),
            SpanKind.SERVER,
            start_time=_nanoseconds(epoch + stages.arrived),
        )
        if span.is_recording():
            span.set_attribute("http.request.method", method)
            span.set_attribute("http.response.status_code", status)
            span.set_attribute("ranker.request_id", scope["state"]["request_id"])
            if route is not None:
                span.set_attribute("http.route", route)
            for name, value in request_fields(scope, status).items():
                if name != "status":
                    span.set_attribute(f"ranker.{name}", value)
            if status >= 500:
                span.set_status(StatusCode.ERROR)
            within = set_span_in_context(span)
            for stage, begin, end in stages.spans():
                child = self._tracer.start_span(stage, within, start_time=_nanoseconds(epoch + begin))
                child.end(_nanoseconds(epoch + end))
        span.end(_nanoseconds(epoch + ended))

    def close(self) -> None:
        """Sends what is left, for at most ``FLUSH_SECONDS``."""
        last = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        last.start()
        last.join(FLUSH_SECONDS)


def from_environment(environ: Mapping[str, str] = os.environ) -> Traces | None:
    """Traces to where OpenTelemetry's standard variables say; None if they name no receiver.

    Raises:
        ConfigError: another protocol is wanted, or OpenTelemetry is not installed.
    """
    named = next((name for name in ENDPOINTS if environ.get(name)), None)
    if named is None or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    for name in PROTOCOLS:
        if environ.get(name, "http/protobuf") != "http/protobuf":
            raise ConfigError(f"the environment: {name}: {environ[name]!r} is not spoken here; set it to http/protobuf")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            f"the environment: {named} is set, but OpenTelemetry is not installed; "
            "pip install 'dselect-ranker[tracing]'"
        ) from None
    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": SERVICE}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
