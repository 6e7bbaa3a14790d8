"""The architecture page shows the imports and files that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import architecture

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "docs" / "architecture.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
PATH = re.compile(r"`((?:ranking|pipelines|service|benchmarks|tests|deploy|docs|requirements|\.ci)/[\w./-]*)`")


def test_generated_parts_of_the_architecture_page_match_the_code() -> None:
    page = architecture.DOCUMENT.read_text()
    assert len(architecture.BLOCK.findall(page)) == 2, "docs/architecture.md has lost the markers of a generated part"
    assert page == architecture.current_page(), "run: python .ci/architecture.py"


def test_paths_named_in_the_pages_exist() -> None:
    named = [(page.name, path) for page in PAGES for path in PATH.findall(page.read_text())]
    assert named
    assert not [(page, path) for page, path in named if not (ROOT / path).exists()]


def test_transitive_reduction_keeps_only_edges_that_no_path_implies() -> None:
    edges = {("a", "b"), ("b", "c"), ("a", "c"), ("a", "d")}
    assert architecture.without_implied(edges) == {("a", "b"), ("b", "c"), ("a", "d")}


def test_folder_of_module_is_its_top_level_folder_or_file() -> None:
    assert architecture.folder_of("service.http.auth.guard") == "service.http"
    assert architecture.folder_of("ranking.errors") == "ranking.errors"
    assert architecture.folder_of("ranking") is None
