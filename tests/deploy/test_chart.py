"""The chart as a cluster would get it: rendered by Helm, held against Kubernetes' schemas and what it promises."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from pipelines.arguments import parser
from pipelines.bench.capacity import CORES, QUEUE_ROWS
from service.security.exposure import OPERATIONS_PORT
from service.settings import Settings, read
from tests.deploy.rendering import CHART, DEPLOY, RenderError, rendered

DOCS = DEPLOY.parent / "docs" / "kubernetes.md"
CUSTOM = json.loads((Path(__file__).parent / "custom_resources.json").read_text())
"""Written by hand from the definitions of the training operator v1.9 and the Prometheus operator v0.80: what the chart
uses of them, and nothing else. The pods within are held against Kubernetes' own schemas."""

VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "gpu": yaml.safe_load((CHART / "values-gpu.yaml").read_text()),
    "everything": {
        "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
        "store": {"secret": "redis"},
        "env": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://traces:4318"}],
        "training": {"daily": {"enabled": True}, "distributed": {"enabled": True, "pods": 3, "gpu": True}},
        "networkPolicy": {"egress": [{"ports": [{"port": 6379}], "to": [{"podSelector": {}}]}]},
    },
    "least": {
        "repository": {"claim": "mine"},
        "keys": {"secret": ""},
        "autoscaling": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "training": {"distributed": {"enabled": True, "pods": 1}},
    },
}

chart = cache(lambda variant: rendered(VARIANTS[variant]))


def one(kind: str, variant: str = "everything") -> dict[str, Any]:
    found: list[dict[str, Any]] = [made for made in chart(variant) if made["kind"] == kind]
    assert len(found) == 1, found
    return found[0]


def pods(variant: str) -> dict[str, dict[str, Any]]:
    """Templates of pods, by what makes them."""
    made = {"serving": one("Deployment", variant)["spec"]["template"]}
    for thing in chart(variant):
        if thing["kind"] == "CronJob":
            made["daily"] = thing["spec"]["jobTemplate"]["spec"]["template"]
        if thing["kind"] == "PyTorchJob":
            made |= {role: spec["template"] for role, spec in thing["spec"]["pytorchReplicaSpecs"].items()}
    return made


def container(variant: str = "everything", pod: str = "serving") -> dict[str, Any]:
    (only,) = pods(variant)[pod]["spec"]["containers"]
    return dict(only)


def environment(variant: str) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "2") for variable in container(variant)["env"]}


def versions() -> list[str]:
    first, last = re.search(r"Kubernetes 1\.(\d+) to 1\.(\d+)", DOCS.read_text()).groups()  # type: ignore[union-attr]
    return [f"1.{minor}" for minor in range(int(first), int(last) + 1)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_object_is_what_each_named_version_of_kubernetes_expects(variant: str) -> None:
    objects = chart(variant)
    for version in versions():
        for thing in objects:
            if thing["kind"] not in CUSTOM:
                kubernetes_validate.validate(thing, version, strict=True)
        for template in pods(variant).values():
            wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}
            kubernetes_validate.validate(wrapped, version, strict=True)
    assert versions()[0] in yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]


def test_a_field_that_kubernetes_does_not_know_would_be_seen() -> None:
    wrong = json.loads(json.dumps(one("Deployment")))
    wrong["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["wait"] = 5
    with pytest.raises(kubernetes_validate.ValidationError, match="wait"):
        kubernetes_validate.validate(wrong, versions()[-1], strict=True)


@pytest.mark.parametrize("kind", CUSTOM)
def test_objects_of_operators_have_the_fields_that_those_know(kind: str) -> None:
    jsonschema.validate(one(kind)["spec"], CUSTOM[kind])


def test_names_are_unique_and_all_belong_to_the_release() -> None:
    objects = chart("everything")
    names = [(thing["kind"], thing["metadata"]["name"]) for thing in objects]
    assert len(set(names)) == len(names)
    assert all(name.startswith("ranker") for _, name in names)
    assert all(thing["metadata"]["labels"]["app.kubernetes.io/instance"] == "ranker" for thing in objects)


def test_probes_ask_what_they_are_for_and_leave_a_busy_process_alone() -> None:
    serving = container()
    port = {"port": "http"}
    assert serving["startupProbe"]["httpGet"] == {"path": "/v2/health/live"} | port
    assert serving["livenessProbe"]["httpGet"] == {"path": "/v2/health/live"} | port
    assert serving["readinessProbe"]["httpGet"] == {"path": "/v2/health/ready"} | port
    live, ready = serving["livenessProbe"], serving["readinessProbe"]
    assert live["periodSeconds"] * live["failureThreshold"] >= 60
    assert serving["startupProbe"]["periodSeconds"] * serving["startupProbe"]["failureThreshold"] >= 120
    settings = VALUES["settings"]
    assert VALUES["preStopSeconds"] + settings["drain_seconds"] > ready["periodSeconds"] * ready["failureThreshold"]


VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


@pytest.mark.parametrize("stop", [{}, {"preStopSeconds": 20, "settings": {"drain_seconds": 7, "grace_seconds": 60}}])
def test_a_pod_is_killed_only_after_all_the_time_that_its_settings_allow(stop: dict[str, Any]) -> None:
    (made,) = [thing for thing in rendered(stop) if thing["kind"] == "Deployment"]
    pod = made["spec"]["template"]["spec"]
    (serving,) = pod["containers"]
    variables = {variable["name"]: variable.get("value") for variable in serving["env"]}
    takes = serving["lifecycle"]["preStop"]["sleep"]["seconds"]
    takes += int(variables["RANKER_DRAIN_SECONDS"]) + int(variables["RANKER_GRACE_SECONDS"])
    assert takes < pod["terminationGracePeriodSeconds"] <= takes + 10


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_pod_is_root_or_can_become_it_or_write_beside_its_volumes(variant: str) -> None:
    for template in pods(variant).values():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        security = spec["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in spec["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert each["resources"]["limits"].keys() >= {"cpu", "memory"}
            assert each["resources"]["requests"] == each["resources"]["limits"], "nothing is promised twice"
            assert "/tmp" in {mount["mountPath"] for mount in each["volumeMounts"]}


def test_a_service_reads_bundles_and_keys_and_writes_neither() -> None:
    mounts = {mount["mountPath"]: mount for mount in container()["volumeMounts"]}
    assert mounts["/repository"]["readOnly"]
    assert mounts["/etc/ranker/keys"]["readOnly"]
    assert "subPath" not in mounts["/etc/ranker/keys"]  # would never see a rotated key
    assert one("PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteMany"]
    assert not [thing for thing in chart("least") if thing["kind"] == "PersistentVolumeClaim"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_variables_are_settings_of_the_service(variant: str) -> None:
    variables = environment(variant)
    named = {name.removeprefix("RANKER_").lower() for name in variables if name.startswith("RANKER_")}
    assert named <= Settings.model_fields.keys()
    variables["RANKER_STORE"] = "redis://redis:6379"  # comes from a secret
    settings = read({"repository": "/repository"}, environ=variables)
    assert settings.grace_seconds == VALUES["settings"]["grace_seconds"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_commands_are_commands_of_ours(variant: str) -> None:
    for pod in pods(variant):
        made = container(variant, pod)
        words = made["command"] + made.get("args", [])
        if words[0] == "torchrun":
            assert words[:4] == ["torchrun", "-m", "--", "pipelines.train"]
            words = ["ranker", "train", *words[4:]]
        parser().parse_args(words[1:])  # ends the process with a usage error if it is none


@pytest.mark.parametrize("variant", ["as it is", "gpu"])
def test_threads_fill_the_cores_of_the_limit(variant: str) -> None:
    serving = container(variant)
    assert serving["resources"]["limits"]["cpu"] == serving["resources"]["requests"]["cpu"]
    (threads,) = [variable for variable in serving["env"] if variable["name"] == "RANKER_THREADS"]
    assert threads["valueFrom"]["resourceFieldRef"]["resource"] == "limits.cpu"


def test_a_gpu_is_asked_for_where_there_is_to_be_one() -> None:
    for bound in ("requests", "limits"):
        assert container("gpu")["resources"][bound]["nvidia.com/gpu"] == 1
        assert "nvidia.com/gpu" not in container("as it is")["resources"][bound]
    assert environment("gpu")["RANKER_BACKEND"] == "cuda"
    assert container("gpu")["image"] == "dselect-ranker:gpu"
    job = one("PyTorchJob")["spec"]
    for role in job["pytorchReplicaSpecs"]:
        assert str(container(pod=role)["resources"]["limits"]["nvidia.com/gpu"]) == job["nprocPerNode"]


def test_it_scales_by_the_candidates_in_a_pod_and_by_cores() -> None:
    scaler = one("HorizontalPodAutoscaler", "as it is")["spec"]
    queue, cpu = scaler["metrics"]
    assert queue["pods"]["metric"] == {"name": "ranker_queue_rows"}
    assert queue["pods"]["target"] == {"type": "AverageValue", "averageValue": str(QUEUE_ROWS)}
    assert cpu["resource"]["name"] == "cpu"
    assert scaler["minReplicas"] >= 2
    assert container("as it is")["resources"]["limits"]["cpu"] == str(CORES), "docs/scaling.md reckons with these"
    assert "replicas" not in one("Deployment", "as it is")["spec"], "a deployment with replicas undoes the scaling"
    assert one("Deployment", "least")["spec"]["replicas"] == 2


def test_an_upgrade_and_a_drained_node_leave_pods_to_serve() -> None:
    deployment, budget = one("Deployment")["spec"], one("PodDisruptionBudget")["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == deployment["selector"]


def test_operations_are_for_monitoring_only() -> None:
    policy = one("NetworkPolicy")["spec"]
    assert policy["podSelector"] == one("Deployment")["spec"]["selector"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    peers = {rule["ports"][0]["port"]: rule["from"] for rule in policy["ingress"]}
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert peers == {"http": [{"namespaceSelector": {}}], "operations": [monitoring]}
    ports = {port["name"]: port["containerPort"] for port in container()["ports"]}
    assert ports == {"http": 8000, "operations": OPERATIONS_PORT}
    services = {made["metadata"]["name"]: made["spec"] for made in chart("everything") if made["kind"] == "Service"}
    assert [port["targetPort"] for port in services["ranker"]["ports"]] == ["http"]
    assert [port["targetPort"] for port in services["ranker-operations"]["ports"]] == ["operations"]


def test_the_operator_gets_the_rules_and_the_dashboard_that_are_tested_here() -> None:
    assert one("PrometheusRule")["spec"] == yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    board = json.loads(one("ConfigMap")["data"]["ranker.json"])
    assert board == json.loads((DEPLOY / "grafana" / "dashboards" / "ranker.json").read_text())
    monitor = one("ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (operations,) = [
        made["metadata"]["labels"]
        for made in chart("everything")
        if made["kind"] == "Service" and made["spec"]["ports"][0]["name"] == monitor["spec"]["endpoints"][0]["port"]
    ]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= operations.items()


def test_a_job_does_not_run_beside_itself_and_ends() -> None:
    job = one("CronJob")["spec"]
    assert job["concurrencyPolicy"] == "Forbid"
    spec = job["jobTemplate"]["spec"]
    assert 0 < spec["activeDeadlineSeconds"] <= 24 * 3600
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"]["values"] == [2, 3], "what a second try would only repeat"
    assert {mount["mountPath"] for mount in container(pod="daily")["volumeMounts"]} >= {"/repository", "/training"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"replica": 3}, "'replica' not allowed"),
        ({"resources": {"limits": {"cpu": "500m"}}}, "/resources/limits/cpu"),
        ({"settings": {"workers": 2}}, "settings.threads: required if settings.workers > 1"),
        ({"settings": {"keys": "keys.json"}}, "invalid propertyName 'keys'"),
        ({"gpu": 2}, "/gpu"),
        ({"networkPolicy": {"monitoring": []}}, "/networkPolicy/monitoring"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], says: str) -> None:
    with pytest.raises(RenderError, match=re.escape(says)):
        rendered(values)


def test_settings_arrive_as_they_were_written() -> None:
    given = {"max_body_bytes": 20_000_000, "server_timing": True, "slow": "1e6", "workers": 2, "threads": 1}
    (made,) = [thing for thing in rendered({"settings": given}) if thing["kind"] == "Deployment"]
    variables = {v["name"]: v.get("value") for v in made["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert variables["RANKER_MAX_BODY_BYTES"] == "20000000"
    assert variables["RANKER_SERVER_TIMING"] == "true"
    assert variables["RANKER_SLOW"] == "1e6"
    assert variables["RANKER_THREADS"] == "1"
