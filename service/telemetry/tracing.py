"""OpenTelemetry traces: one span per ranking request, stage and batch, created after the response is sent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import Scope

from ranking.errors import ConfigError
from service.telemetry.batch_tracer import BatchTracer
from service.telemetry.http_attributes import SCHEMA_URL, request_attributes, response_attributes, span_name
from service.telemetry.stage_timer import StageTimer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

SERVICE = "dselect-ranker"
"""Service name in traces unless OTEL_SERVICE_NAME sets another one."""

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

FLUSH_SECONDS = 3.0
"""Maximum seconds that shutdown waits for unsent spans."""


class RequestTracer:
    """Creates the spans of finished requests. A background thread sends them and drops what cannot be sent.

    Args:
        provider: samples and sends the spans of requests. ``close`` shuts it down.
        exporter: sends the spans of the provider.
        batches: creates the spans of batches, which the same processor sends.

    Attributes:
        batches: creates the spans of batches.
    """

    def __init__(self, provider: TracerProvider, exporter: SpanExporter, batches: BatchTracer) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider, self._exporter, self.batches = provider, exporter, batches
        self._tracer = provider.get_tracer(SERVICE, schema_url=SCHEMA_URL)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, scope: Scope, status: int, fields: Mapping[str, Any], timer: StageTimer, ended: float) -> None:
        """Create the spans of a finished request, below the span named in its ``traceparent`` header.

        Args:
            scope: ASGI scope of the request.
            status: status code of the response.
            fields: attributes of the request's span, without their prefix ``ranker.``.
            timer: stages of the request.
            ended: ``time.monotonic()`` of the response.
        """
        from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context

        epoch = time.time() - time.monotonic()
        span = self._tracer.start_span(
            span_name(scope),
            self._propagator.extract(Headers(scope=scope)),
            SpanKind.SERVER,
            request_attributes(scope),
            start_time=_nanoseconds(epoch + timer.arrived),
        )
        if span.is_recording():
            span.set_attributes(response_attributes(status))
            span.set_attribute("ranker.request_id", scope["state"]["request_id"])
            for name, value in fields.items():
                span.set_attribute(f"ranker.{name}", value)
            if status >= 500:
                span.set_status(StatusCode.ERROR)
            parent = set_span_in_context(span)
            for stage, stage_begin, stage_end in timer.spans():
                child = self._tracer.start_span(stage, parent, start_time=_nanoseconds(epoch + stage_begin))
                child.end(_nanoseconds(epoch + stage_end))
        self.batches.request_finished(timer, span)
        span.end(_nanoseconds(epoch + ended))

    def close(self) -> None:
        """Send the remaining spans, for at most ``FLUSH_SECONDS``, and attempt nothing after that."""
        flush = threading.Thread(target=self._provider.shutdown, name="flush spans", daemon=True)
        flush.start()
        flush.join(FLUSH_SECONDS)
        if flush.is_alive():
            self._exporter.shutdown()  # else attempts would be repeated until OTEL_EXPORTER_OTLP_TIMEOUT


def from_environment(environ: Mapping[str, str] = os.environ) -> RequestTracer | None:
    """Create the tracer that OpenTelemetry's standard variables configure, or None if they name no endpoint.

    Raises:
        ConfigError: the variables select an unsupported protocol, or OpenTelemetry is not installed.
    """
    endpoint = next((name for name in ENDPOINTS if environ.get(name)), None)
    if endpoint is None or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    for name in PROTOCOLS:
        if environ.get(name, "http/protobuf") != "http/protobuf":
            raise ConfigError(f"the environment: {name}: {environ[name]!r} is not supported; set it to http/protobuf")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON
    except ImportError:
        raise ConfigError(
            f"the environment: {endpoint} is set, but OpenTelemetry is not installed; "
            "pip install 'dselect-ranker[tracing]'"
        ) from None
    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": SERVICE}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    batch_provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)  # the requests decide on sampling
    exporter = OTLPSpanExporter()
    processor = BatchSpanProcessor(exporter)
    provider.add_span_processor(processor)
    batch_provider.add_span_processor(processor)
    batches = BatchTracer(batch_provider.get_tracer(SERVICE, schema_url=SCHEMA_URL))
    return RequestTracer(provider, exporter, batches)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
