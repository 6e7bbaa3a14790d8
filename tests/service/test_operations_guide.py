"""docs/operations.md lists every setting, metric and status of the service, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi.testclient import TestClient
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pipelines.jobs.follow_counters import FollowMetrics
from service.protocol.problems import CLIENT_CLOSED
from service.settings import Settings
from service.telemetry.metrics import REJECTIONS, Metrics
from service.telemetry.stage_timer import STAGES

GUIDE = Path(__file__).parents[2] / "docs" / "operations.md"

Row = list[str]


def tables(header: str) -> list[Row]:
    """Return the rows of all tables whose first column has a header."""
    rows_of_tables: list[Row] = []
    for table in re.findall(r"(?:^\|.*\n)+", GUIDE.read_text(), flags=re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines())
        if head[0] == header:
            rows_of_tables += rows
    return rows_of_tables


def names(header: str, pattern: str) -> list[str]:
    """Return the matches of a pattern in the first cells of these tables."""
    return [name for row in tables(header) for name in re.findall(pattern, row[0])]


def test_guide_lists_every_setting_once() -> None:
    assert sorted(names("setting", r"`([a-z_]+)`")) == sorted(Settings.model_fields)


def test_guide_lists_every_metric_with_its_type() -> None:
    families = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for text in (Metrics().exposition(), generate_latest(FollowMetrics(None).registry))
        for family in text_string_to_metric_families(text.decode())
        if family.name.startswith("ranker_")
    }
    rows = [row for row in tables("metric") if len(row) == 4]
    assert {row[0].strip("`"): re.split(r"\W", row[1])[0] for row in rows} == families
    assert {name.partition("{")[0] for name in names("metric", r"`([^`]+)`")} == families.keys()


def test_guide_lists_every_stage_and_rejection_reason() -> None:
    descriptions = {row[0]: row[2] for row in tables("metric") if len(row) == 4}
    assert set(STAGES) <= set(re.findall(r"`([a-z-]+)`", descriptions["`ranker_stage_seconds`"]))
    assert set(REJECTIONS.values()) <= set(re.findall(r"`([a-z_]+)`", descriptions["`ranker_rejections_total`"]))


def test_guide_lists_every_status(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    documented = {
        status
        for operations in paths.values()
        for operation in operations.values()
        for status in operation["responses"]
    }
    possible = {status for status in documented if status >= "400"} | {"401", "403", str(CLIENT_CLOSED), "500"}
    assert set(names("status", r"\b([45]\d\d)\b")) >= possible


def test_guide_lists_every_metric_of_the_rules_and_the_dashboard() -> None:
    deploy = GUIDE.parents[1] / "deploy"
    texts = [(deploy / name).read_text() for name in ("prometheus/rules.yml", "grafana/dashboards/ranker.json")]
    used = set(re.findall(r"\b(ranker_\w+?)(?:_bucket|_sum|_count)?\b(?=[\[{ )])", "".join(texts)))
    assert used
    assert used <= set(names("metric", r"`(\w+)`"))


def test_guide_internal_links_have_targets() -> None:
    headings = re.findall(r"^#+ (.+)", GUIDE.read_text(), flags=re.MULTILINE)
    for anchor in re.findall(r"\]\(#([\w-]+)\)", GUIDE.read_text()):
        assert anchor in {heading.lower().replace(" ", "-") for heading in headings}
