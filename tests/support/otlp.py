"""An OTLP endpoint that keeps the spans it receives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpReceiver:
    """An OTLP endpoint over HTTP that keeps the requests it receives."""

    def __init__(self) -> None:
        self.received: list[ExportTraceServiceRequest] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces"
                receiver.received.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @property
    def spans(self) -> list[Span]:
        """All spans."""
        return [
            span
            for request in self.received
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def server_spans(self) -> list[Span]:
        """Return the spans of requests."""
        return [span for span in self.spans if span.kind == Span.SPAN_KIND_SERVER]

    def batch_spans(self) -> list[Span]:
        """Return the spans of batches in the order of their begin."""
        batches = [span for span in self.spans if span.name == "batch"]
        return sorted(batches, key=lambda span: span.start_time_unix_nano)

    def resource(self) -> dict[str, str]:
        """Return the attributes of the resource that created the spans."""
        return {a.key: a.value.string_value for a in self.received[0].resource_spans[0].resource.attributes}


def attributes(span: Span) -> dict[str, Any]:
    """Return the attributes of a span as Python values."""

    def to_python(value: Any) -> Any:
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [to_python(element) for element in value.array_value.values]
        return getattr(value, kind)

    return {attribute.key: to_python(attribute.value) for attribute in span.attributes}


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Receive spans until the end of the context."""
    receiver = OtlpReceiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()
