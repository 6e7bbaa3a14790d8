"""The pages for operators list every setting, metric and status of the service, and the links of all pages work."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import settings_documents
from fastapi.testclient import TestClient
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pipelines.jobs.follow_counters import FollowMetrics
from service.protocol.problems import CLIENT_CLOSED
from service.telemetry.metrics import REJECTIONS, Metrics
from service.telemetry.stage_timer import STAGES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SETTINGS, MONITORING, INCIDENTS = (DOCS / name for name in ("settings.md", "monitoring.md", "incidents.md"))
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted(DOCS.rglob("*.md")),
]

Row = list[str]


def tables(page: Path, header: str) -> list[Row]:
    """Return the rows of all tables of a page whose first column has a header."""
    rows_of_tables: list[Row] = []
    for table in re.findall(r"(?:^\|.*\n)+", page.read_text(), flags=re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines())
        if head[0] == header:
            rows_of_tables += rows
    return rows_of_tables


def names(page: Path, header: str, pattern: str) -> list[str]:
    """Return the matches of a pattern in the first cells of these tables."""
    return [name for row in tables(page, header) for name in re.findall(pattern, row[0])]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    counts: Counter[str] = Counter()
    page_anchors = set()
    for heading in re.findall(r"^#+ (.+)", without_code(page), flags=re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        page_anchors.add(f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor)
        counts[anchor] += 1
    return page_anchors


def without_code(page: Path) -> str:
    """Return the text of a page without its code blocks, which may have comments that look like headings."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def broken_links(page: Path) -> list[str]:
    """Return the relative links and anchors of a page that have no target."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)|\b(?:src|srcset|href)=\"([^\"]+)\"", without_code(page)):
        path, _, anchor = "".join(link).partition("#")
        if re.match(r"\w+:", path):
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append("".join(link))
    return broken


def test_settings_page_has_the_generated_table() -> None:
    assert settings_documents.settings_table() in SETTINGS.read_text(), "run 'python .ci/settings_documents.py'"


def test_monitoring_page_lists_every_metric_with_its_type() -> None:
    families = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for text in (Metrics().exposition(), generate_latest(FollowMetrics(None).registry))
        for family in text_string_to_metric_families(text.decode())
        if family.name.startswith("ranker_")
    }
    rows = tables(MONITORING, "metric")
    assert {len(row) for row in rows} == {4}
    assert {row[0].strip("`"): re.split(r"\W", row[1])[0] for row in rows} == families


def test_monitoring_page_lists_every_stage_and_rejection_reason() -> None:
    descriptions = {row[0]: row[2] for row in tables(MONITORING, "metric")}
    assert set(STAGES) <= set(re.findall(r"`([a-z-]+)`", descriptions["`ranker_stage_seconds`"]))
    assert set(REJECTIONS.values()) <= set(re.findall(r"`([a-z_]+)`", descriptions["`ranker_rejections_total`"]))


def test_incidents_page_lists_every_status(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    documented = {
        status
        for operations in paths.values()
        for operation in operations.values()
        for status in operation["responses"]
    }
    possible = {status for status in documented if status >= "400"} | {"401", "403", str(CLIENT_CLOSED), "500"}
    assert set(names(INCIDENTS, "status", r"\b([45]\d\d)\b")) >= possible


def test_monitoring_page_lists_every_metric_of_the_rules_and_the_dashboard() -> None:
    deploy = ROOT / "deploy"
    texts = [(deploy / name).read_text() for name in ("prometheus/rules.yml", "grafana/dashboards/ranker.json")]
    used = set(re.findall(r"\b(ranker_\w+?)(?:_bucket|_sum|_count)?\b(?=[\[{ )])", "".join(texts)))
    assert used
    assert used <= set(names(MONITORING, "metric", r"`(\w+)`"))


def test_links_of_all_pages_have_targets() -> None:
    assert {page.name: links for page in PAGES if (links := broken_links(page))} == {}


def test_broken_links_finds_missing_files_and_anchors(tmp_path: Path) -> None:
    other = tmp_path / "other.md"
    other.write_text("# Users of `the store`\n```sh\n# no heading\n```\n## Twice\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#users-of-the-store) [b](other.md#twice-1) [c](https://example.com/x#y) [d](#here)\n"
        "[e](other.md#no-heading) [f](gone.md) ![g](gone.png)\n## Here\n"
    )
    assert broken_links(page) == ["other.md#no-heading", "gone.md", "gone.png"]
