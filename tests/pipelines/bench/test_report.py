"""Tests of the tables of ``ranker bench``."""

from __future__ import annotations

from pipelines.bench import report
from tests.support.bench_results import serving_results


def test_format_tables_formats_every_part() -> None:
    text = report.format_tables(serving_results())
    assert text.count("### ") == len(report.TABLES) + 1  # "http" has two tables.
    assert "| ids | 100 | 80, 2 / 4 | 80, 2 / 4 |" in text
    assert "| rows | 500 | 0.1 | 0.2 | 5 | 2 | 0.3 | 1.5 | 2 |" in text
    assert "| 100 | 70% | 35 | 2 | 5 | 2.5 (2.5 – 2.5) |" in text


def test_format_tables_omits_parts_that_were_not_measured() -> None:
    text = report.format_tables({"open": serving_results()["open"]})
    assert text.startswith("### Over HTTP, open loop\n")
    assert text.count("### ") == 1
