"""Fixtures of the tests of telemetry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.otlp import OtlpReceiver, otlp_receiver


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    """An OTLP endpoint that the environment configures."""
    with otlp_receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        yield receiver
