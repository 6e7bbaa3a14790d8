"""The architecture page shows the folders and imports that the code has, and names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import diagram

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "docs" / "architecture.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
PATH = re.compile(r"`((?:ranking|pipelines|service|benchmarks|tests|deploy|docs|requirements|\.ci)/[\w./-]*)`")


def test_diagram_in_architecture_page_matches_the_imports() -> None:
    match = diagram.BLOCK.search(diagram.DOCUMENT.read_text())
    assert match is not None, "docs/architecture.md has lost the markers of the diagram"
    assert match[2] == diagram.mermaid(), "run: python .ci/diagram.py"


def test_paths_named_in_the_pages_exist() -> None:
    named = [(page.name, path) for page in PAGES for path in PATH.findall(page.read_text())]
    assert named
    assert not [(page, path) for page, path in named if not (ROOT / path).exists()]


def test_transitive_reduction_keeps_only_edges_that_no_path_implies() -> None:
    edges = {("a", "b"), ("b", "c"), ("a", "c"), ("a", "d")}
    assert diagram.without_implied(edges) == {("a", "b"), ("b", "c"), ("a", "d")}


def test_folder_of_module_is_its_top_level_folder_or_file() -> None:
    assert diagram.folder_of("service.http.auth.guard") == "service.http"
    assert diagram.folder_of("ranking.errors") == "ranking.errors"
    assert diagram.folder_of("ranking") is None
