"""deploy/compose.yaml: what Compose would say of it, and whether what it names exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from service.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "compose.yaml"
PORTS = {"ranker": 8000, "prometheus": 9090, "grafana": 3000}
"""Where each service listens within its container."""


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """As Compose understands it: YAML's anchors resolved, every key and value checked against the specification."""
    understood: dict[str, Any] = PyCompose.from_json(json.dumps(yaml.safe_load(FILE.read_text()))).to_dict()
    return understood


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    return dict(compose["services"])


def stages() -> set[str]:
    """Targets of the Dockerfile."""
    return set(re.findall(r"^FROM .* AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))


def test_has_the_whole_stack(services: dict[str, Any]) -> None:
    assert set(services) == {"trainer", "loader", "ranker", "redis", "prometheus", "grafana"}


def test_images_are_pinned_or_built_here(services: dict[str, Any]) -> None:
    built = {service["image"]: service["build"] for service in services.values() if "build" in service}
    for build in built.values():
        assert (FILE.parent / build["context"]).resolve() == ROOT
        assert build["target"] in stages()
    for name, service in services.items():
        pinned = re.search(r":v?\d+\.\d+\.\d+(-alpine)?$", service["image"])
        assert service["image"] in built or pinned, name


def test_folders_that_are_mounted_exist(compose: dict[str, Any], services: dict[str, Any]) -> None:
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert any((FILE.parent / source).iterdir()), source
            else:
                assert source in compose["volumes"]


def test_variables_are_settings(services: dict[str, Any]) -> None:
    """A misspelt variable would be passed over in silence."""
    given = {name: str(value) for name, value in services["ranker"]["environment"].items()}
    assert set(given) <= {PREFIX + name.upper() for name in Settings.model_fields}
    settings = Settings.model_validate(
        {"repository": "/repository"} | {name.removeprefix(PREFIX).lower(): value for name, value in given.items()}
    )
    assert settings.no_keys
    assert set(services["loader"]["environment"]) <= set(given)


def test_ports_are_this_machines_alone_and_listened_on(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for port in service.get("ports", ()):
            host, _, inside = port.split(":")
            assert (host, int(inside)) == ("127.0.0.1", PORTS[name])


def test_those_that_are_waited_for_exist(services: dict[str, Any]) -> None:
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)


def test_addresses_within_are_those_of_services(services: dict[str, Any]) -> None:
    texts = [FILE.read_text(), *(file.read_text() for file in (FILE.parent / "grafana").rglob("*.yml"))]
    hosts = {host for text in texts for host in re.findall(r"(?:redis|http)://([a-z]+):\d+", text)}
    assert hosts == {"redis", "prometheus"}
    assert hosts <= set(services)


def test_prometheus_scrapes_the_service(services: dict[str, Any]) -> None:
    text = (FILE.parent / "prometheus" / "prometheus.yml").read_text()
    (job,) = yaml.safe_load(text)["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    assert found["names"] == ["ranker"]
    assert f"EXPOSE 8000 {found['port']}" in (ROOT / "Dockerfile").read_text()
    assert all((FILE.parent / "prometheus" / file).is_file() for file in yaml.safe_load(text)["rule_files"])


@pytest.mark.parametrize("name", ["trainer", "loader", "ranker", "redis", "prometheus"])
def test_what_can_be_is_read_only_and_without_privileges(services: dict[str, Any], name: str) -> None:
    service = services[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_commands_are_the_command_lines(services: dict[str, Any]) -> None:
    """Every ``ranker`` command of the file is one that its parser takes."""
    from pipelines.arguments import parser

    lines = [line for name in ("trainer", "loader") for line in services[name]["command"][0].splitlines()]
    commands = [line.split("ranker ", 1)[1].split() for line in lines if "ranker " in line]
    assert [command[0] for command in commands] == ["logs", "daily", "items", "users"]
    for command in commands:
        parser().parse_args(command)
