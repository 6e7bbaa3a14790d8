"""The handbook has every setting, metric and status of the service, and none that is no more."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from service.protocol.problems import CLIENT_CLOSED_REQUEST
from service.settings import Settings
from service.telemetry.metrics import REJECTIONS, Metrics
from service.telemetry.stage_timer import STAGES

HANDBOOK = Path(__file__).parents[2] / "docs" / "operations.md"


Row = list[str]


def tables(header: str) -> list[Row]:
    """Rows of all tables whose first column has this header, wherever they stand."""
    found: list[Row] = []
    for table in re.findall(r"(?:^\|.*\n)+", HANDBOOK.read_text(), flags=re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines())
        if head[0] == header:
            found += rows
    return found


def names(header: str, pattern: str) -> list[str]:
    """What the first cells of these tables name."""
    return [name for row in tables(header) for name in re.findall(pattern, row[0])]


def section(heading: str) -> str:
    """What stands below a heading."""
    return re.split(r"^#+ ", HANDBOOK.read_text().split(f"# {heading}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_every_setting_once() -> None:
    assert sorted(names("setting", r"`([a-z_]+)`")) == sorted(Settings.model_fields)


def test_every_metric_with_its_type() -> None:
    families = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in text_string_to_metric_families(Metrics().exposition().decode())
        if family.name.startswith("ranker_")
    }
    rows = [row for row in tables("metric") if len(row) == 4]
    assert {row[0].strip("`"): re.split(r"\W", row[1])[0] for row in rows} == families
    assert {name.partition("{")[0] for name in names("metric", r"`([^`]+)`")} == families.keys()


def test_every_stage_and_reason() -> None:
    told = {row[0]: row[2] for row in tables("metric") if len(row) == 4}
    assert set(STAGES) <= set(re.findall(r"`([a-z-]+)`", told["`ranker_stage_seconds`"]))
    assert set(REJECTIONS.values()) <= set(re.findall(r"`([a-z_]+)`", told["`ranker_rejections_total`"]))


def test_every_status(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    told = {status for operations in paths.values() for each in operations.values() for status in each["responses"]}
    possible = {status for status in told if status >= "400"} | {"401", "403", str(CLIENT_CLOSED_REQUEST), "500"}
    assert set(names("status", r"\b([45]\d\d)\b")) >= possible


def test_every_name_in_the_rules_and_the_dashboard_is_a_metric() -> None:
    deploy = HANDBOOK.parents[1] / "deploy"
    texts = [(deploy / name).read_text() for name in ("prometheus/rules.yml", "grafana/dashboards/ranker.json")]
    used = set(re.findall(r"\b(ranker_\w+?)(?:_bucket|_sum|_count)?\b(?=[\[{ )])", "".join(texts)))
    assert used
    assert used <= set(names("metric", r"`(\w+)`"))


def test_every_link_within_leads_somewhere() -> None:
    headings = re.findall(r"^#+ (.+)", HANDBOOK.read_text(), flags=re.MULTILINE)
    for anchor in re.findall(r"\]\(#([\w-]+)\)", HANDBOOK.read_text()):
        assert anchor in {heading.lower().replace(" ", "-") for heading in headings}
