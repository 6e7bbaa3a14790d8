"""Tests of deploy/compose.yaml: it is valid, and the paths, ports, variables and commands that it names exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from service.settings import KILL_MARGIN_SECONDS, PREFIX, Settings

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "deploy" / "compose.yaml"
PORTS = {"ranker": 8000, "prometheus": 9090, "grafana": 3000}
"""Port on which each service listens inside its container."""


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The parsed file: YAML anchors resolved, keys and values validated against the Compose specification."""
    content: dict[str, Any] = PyCompose.from_json(json.dumps(yaml.safe_load(COMPOSE_FILE.read_text()))).to_dict()
    return content


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    return dict(compose["services"])


def dockerfile_stages() -> set[str]:
    """Names of the build stages in the Dockerfile."""
    return set(re.findall(r"^FROM .* AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))


def test_compose_defines_all_services(services: dict[str, Any]) -> None:
    assert set(services) == {"trainer", "loader", "ranker", "redis", "prometheus", "grafana"}


def test_images_are_pinned_or_built_from_the_repository(services: dict[str, Any]) -> None:
    built = {service["image"]: service["build"] for service in services.values() if "build" in service}
    for build in built.values():
        assert (COMPOSE_FILE.parent / build["context"]).resolve() == ROOT
        assert build["args"] == {"BASE_IMAGE": "${BASE_IMAGE:-python:3.11-slim-bookworm}"}
        assert build["target"] in dockerfile_stages()
    for name, service in services.items():
        pinned = re.search(r":v?\d+\.\d+\.\d+(-alpine)?$", service["image"])
        assert service["image"] in built or pinned, name


def test_mounted_folders_and_volumes_exist(compose: dict[str, Any], services: dict[str, Any]) -> None:
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert any((COMPOSE_FILE.parent / source).iterdir()), source
            else:
                assert source in compose["volumes"]


def test_environment_variables_are_settings_that_fit_into_the_grace_period(services: dict[str, Any]) -> None:
    """The service ignores unknown variables, so that a typo would go unnoticed."""
    variables = {name: str(value) for name, value in services["ranker"]["environment"].items()}
    assert set(variables) <= {PREFIX + name.upper() for name in Settings.model_fields}
    settings = Settings.model_validate(
        {"repository": "/repository"} | {name.removeprefix(PREFIX).lower(): value for name, value in variables.items()}
    )
    assert settings.no_keys
    seconds = settings.drain_seconds + settings.grace_seconds + KILL_MARGIN_SECONDS
    assert seconds < int(services["ranker"]["stop_grace_period"].removesuffix("s")) <= seconds + 10


def test_published_ports_are_loopback_only_and_match_containers(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for port in service.get("ports", ()):
            host, _, container_port = port.split(":")
            assert (host, int(container_port)) == ("127.0.0.1", PORTS[name])


def test_depends_on_names_existing_services(services: dict[str, Any]) -> None:
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)


def test_internal_addresses_name_existing_services(services: dict[str, Any]) -> None:
    texts = [COMPOSE_FILE.read_text(), *(file.read_text() for file in (COMPOSE_FILE.parent / "grafana").rglob("*.yml"))]
    hosts = {host for text in texts for host in re.findall(r"(?:@|http://)([a-z]+):\d+", text)}
    assert hosts == {"redis", "prometheus"}
    assert hosts <= set(services)


def test_prometheus_scrapes_the_operations_port_of_the_ranker(services: dict[str, Any]) -> None:
    text = (COMPOSE_FILE.parent / "prometheus" / "prometheus.yml").read_text()
    (job,) = yaml.safe_load(text)["scrape_configs"]
    (discovery,) = job["dns_sd_configs"]
    assert discovery["names"] == ["ranker"]
    assert f"EXPOSE 8000 {discovery['port']}" in (ROOT / "Dockerfile").read_text()
    assert all((COMPOSE_FILE.parent / "prometheus" / file).is_file() for file in yaml.safe_load(text)["rule_files"])


def test_services_are_read_only_and_unprivileged(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["read_only"], name
        assert service["tmpfs"] == ["/tmp"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("user", "") not in ("root", "0", "0:0"), name


def test_default_base_image_is_that_of_the_dockerfile(services: dict[str, Any]) -> None:
    (base,) = re.findall(r"^ARG BASE_IMAGE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name in ("trainer", "ranker"):
        assert services[name]["build"]["args"]["BASE_IMAGE"] == f"${{BASE_IMAGE:-{base}}}"


def test_grafana_writes_to_its_volume_only(services: dict[str, Any]) -> None:
    writable = [volume for volume in services["grafana"]["volumes"] if not volume.endswith(":ro")]
    assert writable == ["grafana:/var/lib/grafana"]
    assert services["grafana"]["environment"]["GF_LOG_MODE"] == "console"


def test_redis_passwords_are_secrets_of_exactly_their_users(compose: dict[str, Any], services: dict[str, Any]) -> None:
    passwords = {f"redis-{user}-password" for user in ("service", "loader")}
    assert compose["secrets"] == {name: {"file": f"./{name}"} for name in passwords}
    assert "/deploy/redis-*-password" in (ROOT / ".gitignore").read_text().splitlines()
    secrets = {name: set(service["secrets"]) for name, service in services.items() if "secrets" in service}
    assert secrets == {"loader": {"redis-loader-password"}, "ranker": {"redis-service-password"}, "redis": passwords}
    assert all("PASSWORD" not in str(service.get("environment", "")) for service in services.values())


def test_ranker_commands_parse(services: dict[str, Any]) -> None:
    from pipelines.cli.main import build_parser

    lines = [line for name in ("trainer", "loader") for line in services[name]["command"][0].splitlines()]
    commands = [line.split("ranker ", 1)[1].split() for line in lines if "ranker " in line]
    assert [command[0] for command in commands] == ["logs", "daily", "items", "users"]
    for command in commands:
        build_parser().parse_args(command)
