"""Tests of the Markdown tables."""

from __future__ import annotations

import pytest

from pipelines.bench.tables import cores, section, spread, three_digits


def test_section_has_heading_caption_and_table() -> None:
    text = section("T", "caption", ("", "a"), [("x", "1")])
    assert text == "### T\n\ncaption\n\n|  | a |\n| --- | --- |\n| x | 1 |\n"


def test_spread_shows_median_lowest_and_highest() -> None:
    assert spread([3.0, 1.0, 2.0], ".1f") == "2.0 (1.0 – 3.0)"
    assert spread([3.0], ".1f") == "3.0"


@pytest.mark.parametrize(
    ("number", "text"), [(0.04567, "0.0457"), (12.0, "12"), (999.4, "999"), (999.6, "1,000"), (11_804.2, "11,804")]
)
def test_three_digits_rounds_to_three_significant_digits(number: float, text: str) -> None:
    assert three_digits(number) == text


@pytest.mark.parametrize(("threads", "text"), [(1, "1 thread on 1 core"), (2, "2 threads on 2 cores")])
def test_cores_describes_threads_and_cores(threads: int, text: str) -> None:
    assert cores(threads) == text
