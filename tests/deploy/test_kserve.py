"""deploy/kserve.yaml: its pod is valid, and its command, settings and probes are those of the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from service.settings import KILL_MARGIN_SECONDS, Settings
from tests.deploy.rendering import validate_object
from tests.deploy.test_chart import supported_kubernetes_versions

MANIFEST: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "deploy" / "kserve.yaml").read_text())
PREDICTOR: dict[str, Any] = MANIFEST["spec"]["predictor"]
SCALING = {"minReplicas", "maxReplicas"}
"""Fields of a predictor beside those of a pod."""


def test_predictor_is_a_valid_pod() -> None:
    spec = {name: value for name, value in PREDICTOR.items() if name not in SCALING}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    for version in supported_kubernetes_versions():
        validate_object(pod, version)


def test_environment_names_settings_that_fit_into_the_grace_period() -> None:
    (container,) = PREDICTOR["containers"]
    names = {variable["name"].removeprefix("RANKER_").lower() for variable in container["env"]} - {"home"}
    assert names <= set(Settings.model_fields)
    assert not names & {"drain_seconds", "grace_seconds"}
    seconds = sum(Settings.model_fields[name].default for name in ("drain_seconds", "grace_seconds"))
    assert seconds + KILL_MARGIN_SECONDS < PREDICTOR["terminationGracePeriodSeconds"]


def test_probes_are_paths_of_the_ranking_port() -> None:
    (container,) = PREDICTOR["containers"]
    (port,) = container["ports"]
    assert str(port["containerPort"]) == container["command"][container["command"].index("--port") + 1]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        get = container[probe]["httpGet"]
        assert get["port"] == port["containerPort"]
        assert get["path"] in ("/v2/health/live", "/v2/health/ready")
