"""Values of metrics in the text format of Prometheus."""

from __future__ import annotations

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families


def samples(text: str) -> dict[str, float]:
    """Map ``name,label=value,…`` to the value of each sample, with labels in alphabetical order."""
    return {
        sample.name + "".join(f",{name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def metrics_of(client: TestClient) -> dict[str, float]:
    """Return the samples of a service in this process."""
    return samples(client.get("/metrics").text)
