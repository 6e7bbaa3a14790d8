"""The handbook has every setting, metric and status of the service, and none that is no more."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from service.metrics import REJECTIONS, Metrics
from service.problems import CLIENT_CLOSED_REQUEST
from service.settings import Settings
from service.stages import STAGES

HANDBOOK = Path(__file__).parents[2] / "docs" / "operations.md"


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """Heading → what stands below it."""
    _, *parts = re.split(r"^#{2,3} (.+)\n", HANDBOOK.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def rows(section: str) -> dict[str, str]:
    """First cell of each row → the others."""
    cells = [line.strip("| ").split(" | ", 1) for line in section.splitlines() if line.startswith("|")]
    return {row[0]: row[1] for row in cells if len(row) == 2}


def names(section: str, pattern: str) -> set[str]:
    """What the first cells name."""
    return {name for cell in rows(section) for name in re.findall(pattern, cell)}


def test_every_setting(sections: dict[str, str]) -> None:
    assert names(sections["Settings"], r"`([a-z_]+)`") == set(Settings.model_fields)


def test_every_metric(sections: dict[str, str]) -> None:
    families = [
        family
        for family in text_string_to_metric_families(Metrics().exposition().decode())
        if family.name.startswith("ranker_")
    ]
    ours = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    assert names(sections["Metrics"], r"`(\w+)`") == ours
    kinds = {name: re.split(r"\W", cells)[0] for name, cells in rows(sections["Metrics"]).items() if "ranker" in name}
    assert set(kinds.values()) == {"counter", "gauge", "histogram"}
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        assert kinds[f"`{name}`"] == family.type


def test_every_stage_and_reason(sections: dict[str, str]) -> None:
    metrics = rows(sections["Metrics"])
    assert set(STAGES) <= set(re.findall(r"`([a-z-]+)`", metrics["`ranker_stage_seconds`"]))
    assert set(REJECTIONS.values()) <= set(re.findall(r"`([a-z_]+)`", metrics["`ranker_rejections_total`"]))


def test_every_status(client: TestClient, sections: dict[str, str]) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    told = {status for operations in paths.values() for each in operations.values() for status in each["responses"]}
    possible = {status for status in told if status >= "400"} | {"401", "403", str(CLIENT_CLOSED_REQUEST), "500"}
    assert names(sections["Failures"], r"\b([45]\d\d)\b") >= possible


def test_every_variable_in_its_alerts_is_a_metric_of_ours(sections: dict[str, str]) -> None:
    used = set(re.findall(r"\b(ranker_\w+?)(?:_bucket|_sum|_count)?\b(?=[\[{ )])", sections["Alerts"]))
    assert used
    assert used <= names(sections["Metrics"], r"`(\w+)`")


@pytest.mark.parts
def test_prometheus_own_tool_takes_its_alerts(sections: dict[str, str], tmp_path: Path) -> None:
    if shutil.which("promtool") is None:
        message = "promtool is not there; install Debian's package prometheus"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    rules = tmp_path / "ranker.yml"
    rules.write_text(sections["Alerts"].split("```yaml\n")[1].split("```")[0])
    found = subprocess.run(["promtool", "check", "rules", str(rules)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr


def test_every_link_within_leads_somewhere(sections: dict[str, str]) -> None:
    for anchor in re.findall(r"\]\(#([\w-]+)\)", HANDBOOK.read_text()):
        assert anchor in {heading.lower().replace(" ", "-") for heading in sections}
