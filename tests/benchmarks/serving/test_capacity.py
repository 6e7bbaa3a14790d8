"""The arithmetic of docs/scaling.md, and that its tables are those of the results beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.bench import capacity
from tests.pipelines.bench.test_report import results

DOCS = Path(__file__).parents[3] / "docs"


def test_replicas() -> None:
    assert capacity.replicas(1_000, rate=500) == 3  # two cores at half of 500 each: 500 a replica
    assert capacity.replicas(1_001, rate=500) == 4
    assert capacity.replicas(0.1, rate=500) == 2, "one may be lost"


def test_http_decides_where_it_was_measured() -> None:
    measured = results()
    assert "HTTP, ids" in capacity.text(measured)
    measured.pop("http")
    assert "upper bound" in capacity.text(measured)
    with pytest.raises(LookupError):
        capacity.text({})


def test_a_table_holds_what_the_formula_says() -> None:
    engines = {"frozen, onnxruntime": [0.0018], "look-up of ids": [0.0002]}  # 2 ms: 500 requests/s
    text = capacity.text({"engines": {"threads": 1, "measured": {"sizes": {"100": engines}}}})
    assert "| 1,000 | 4.0 | 3 | 175 |" in text  # 3 replicas × 2 cores × 0.04 × 730
    assert "500 candidates" not in text


def test_the_document_has_what_the_results_beside_it_give() -> None:
    measured = json.loads((DOCS / "results" / "serving.json").read_text())
    assert capacity.text(measured) in (DOCS / "scaling.md").read_text(), "ranker bench --docs docs writes it"
