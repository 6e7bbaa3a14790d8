"""A document of which each benchmark writes its own part."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.bench.tables import replace_part, section, spread, three_digits


def test_each_part_is_replaced_alone(tmp_path: Path) -> None:
    file = tmp_path / "benchmarks.md"
    file.write_text("# Mine\n\nprose\n")
    replace_part(file, "one", "old figures")
    replace_part(file, "other", "its figures")
    between = file.read_text().replace("<!-- other: measured", "more prose\n<!-- other: measured")
    file.write_text(between)
    replace_part(file, "one", "new figures")
    text = file.read_text()
    assert text.startswith("# Mine\n\nprose\n")
    assert "old figures" not in text
    assert text.index("new figures") < text.index("more prose") < text.index("its figures")
    replace_part(file, "one", "new figures")
    assert file.read_text() == text


def test_a_document_is_made_if_there_is_none(tmp_path: Path) -> None:
    replace_part(tmp_path / "benchmarks.md", "one", "figures")
    assert (tmp_path / "benchmarks.md").read_text().startswith("# Benchmarks\n")


def test_a_section_is_a_heading_a_sentence_and_a_table() -> None:
    assert section("T", "how", ("", "a"), [("x", "1")]) == "### T\n\nhow\n\n|  | a |\n| --- | --- |\n| x | 1 |\n"


def test_spread_is_median_lowest_highest() -> None:
    assert spread([3.0, 1.0, 2.0], ".1f") == "2.0 (1.0 – 3.0)"
    assert spread([3.0], ".1f") == "3.0"


@pytest.mark.parametrize(
    ("number", "text"), [(0.04567, "0.0457"), (12.0, "12"), (999.4, "999"), (999.6, "1,000"), (11_804.2, "11,804")]
)
def test_three_digits_count(number: float, text: str) -> None:
    assert three_digits(number) == text
