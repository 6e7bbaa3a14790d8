"""Tests of the generated parts of documents."""

from __future__ import annotations

from pathlib import Path

from benchmarks.document import replace_part


def test_replace_part_changes_only_its_part(tmp_path: Path) -> None:
    file = tmp_path / "benchmarks.md"
    file.write_text("# Mine\n\nprose\n")
    replace_part(file, "one", "old figures")
    replace_part(file, "other", "its figures")
    file.write_text(file.read_text().replace("<!-- other: measured", "more prose\n<!-- other: measured"))
    replace_part(file, "one", "new figures")
    text = file.read_text()
    assert text.startswith("# Mine\n\nprose\n")
    assert "old figures" not in text
    assert text.index("new figures") < text.index("more prose") < text.index("its figures")
    replace_part(file, "one", "new figures")
    assert file.read_text() == text


def test_replace_part_creates_a_missing_document(tmp_path: Path) -> None:
    replace_part(tmp_path / "benchmarks.md", "one", "figures")
    assert (tmp_path / "benchmarks.md").read_text().startswith("# Benchmarks\n")
