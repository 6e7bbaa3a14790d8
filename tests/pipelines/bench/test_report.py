"""Tests of the tables of ``ranker bench``."""

from __future__ import annotations

from pipelines.bench import report
from tests.support.bench_results import serving_results


def test_format_tables_formats_every_part() -> None:
    text = report.format_tables(serving_results())
    assert "| frozen, onnxruntime | 9 | 9 |" in text
    assert "| ids | 100 | 80, 2 / 4 | 80, 2 / 4 |" in text
    assert "| rows | 500 | 0.1 | 0.2 | 5 | 2 | 0.3 | 1.5 | 2 |" in text
    assert "| 80, 2 / 4 | 100 | 0.80 (0.80 – 0.80) |" in text
    assert "| 100 | 70% | 35 | 2 | 5 | 2.5 (2.5 – 2.5) |" in text
    assert "| no batches | 60, 2 / 4 (6 failed) |" in text
    assert "| 5× that rate | 90 | 5 | 10 | 80% | 12 | 0 |" in text
    assert "| 32 clients, afterwards | 95 | 2 | 4 | 0% | – | 0 |" in text
    assert "| ids | 100, 2 / 4 | 96, 2 / 4 | 0.96 (0.96 – 0.96) | 2.5% (2.5% – 2.5%) | 4.0 | 0 |" in text
    assert "| slow | 100, 2 / 4 | 90, 2 / 6 | 1.50 (1.50 – 1.50) |" in text


def test_format_tables_omits_parts_that_were_not_measured() -> None:
    text = report.format_tables({"batching": serving_results()["batching"]})
    assert text.startswith("### Batches of many requests\n")
    assert text.count("### ") == 1


def test_format_tables_ignores_parts_of_other_benchmarks() -> None:
    assert "LitServe" not in report.format_tables(serving_results())
