"""Tests of the capacity tables of docs/scaling.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.serving import capacity
from tests.support.bench_results import serving_results

DOCS = Path(__file__).parents[3] / "docs"


def test_replicas_includes_a_spare_one() -> None:
    assert capacity.replicas(1_000, rate=500) == 5  # A replica of one core serves 250 requests/s at half its peak.
    assert capacity.replicas(1_001, rate=500) == 6
    assert capacity.replicas(0.1, rate=500) == 2


def test_format_capacity_prefers_rates_over_http() -> None:
    results = serving_results()
    assert "HTTP, ids" in capacity.format_capacity(results)
    results.pop("http")
    assert "upper bound" in capacity.format_capacity(results)
    with pytest.raises(LookupError):
        capacity.format_capacity({})


def test_format_capacity_follows_the_documented_formula() -> None:
    seconds = {"frozen, onnxruntime": [0.0018], "look-up of ids": [0.0002]}  # 2 ms: 500 requests/s
    text = capacity.format_capacity({"engines": {"threads": 1, "measured": {"sizes": {"100": seconds}}}})
    assert "| 1,000 | 4.0 | 5 | 146 |" in text  # 5 replicas × 0.04 × 730
    assert "500 candidates" not in text


def test_published_capacity_tables_match_the_published_results() -> None:
    results = json.loads((DOCS / "results" / "serving.json").read_text())
    assert capacity.format_capacity(results) in (DOCS / "scaling.md").read_text(), "run python -m benchmarks.serving"
