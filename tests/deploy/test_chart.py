"""Tests of the Helm chart: rendered by Helm, validated against the Kubernetes schemas and the documented behavior."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import chart_settings
import jsonschema
import kubernetes_validate
import pytest
import yaml

from benchmarks.serving.capacity import CORES, QUEUE_ROWS
from pipelines.cli.arguments import build_parser
from service.main import OPERATIONS_PORT
from service.settings import Settings, load_settings
from tests.deploy.rendering import CHART, DEPLOY, RenderError, render_chart

DOCS = DEPLOY.parent / "docs" / "kubernetes.md"
CUSTOM_RESOURCE_SCHEMAS = json.loads((Path(__file__).parent / "custom_resources.json").read_text())
"""Schemas of custom resources by kind, with only the fields that the chart uses.

They are written by hand from the definitions of the training operator v1.9, the Prometheus operator v0.80 and the
Gateway API v1. The pod templates inside custom resources are validated against the Kubernetes schemas.
"""

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "gpu": yaml.safe_load((CHART / "values-gpu.yaml").read_text()),
    "all": {
        "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
        "store": {"secret": "redis"},
        "feedback": {"enabled": True},
        "extraVolumes": [{"name": "certificates", "configMap": {"name": "authorities"}}],
        "extraVolumeMounts": [{"name": "certificates", "mountPath": "/etc/ssl/redis", "readOnly": True}],
        "env": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://traces:4318"}],
        "training": {"daily": {"enabled": True}, "distributed": {"enabled": True, "pods": 3, "gpu": True}},
        "networkPolicy": {"egress": [{"ports": [{"port": 6379}], "to": [{"podSelector": {}}]}]},
        "serviceAccount": {"create": True, "annotations": {"example.com/role": "models"}},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "hosts": ["rank.example.com"],
            "tls": [{"secretName": "ranker-tls", "hosts": ["rank.example.com"]}],
        },
        "httpRoute": {
            "enabled": True,
            "parentRefs": [{"name": "public", "namespace": "gateways"}],
            "hostnames": ["r.io"],
        },
    },
    "minimal": {
        "repository": {"claim": "mine"},
        "keys": {"secret": ""},
        "autoscaling": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "training": {"distributed": {"enabled": True, "pods": 1}},
    },
}

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
"""Default values of the chart."""


@cache
def objects_of(variant: str) -> list[dict[str, Any]]:
    """All objects that the chart renders for a variant."""
    return render_chart(VARIANTS[variant])


def objects_of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [manifest for manifest in objects if manifest["kind"] == kind]


def find_object(kind: str, variant: str = "all") -> dict[str, Any]:
    """The only object of a kind."""
    matches = objects_of_kind(objects_of(variant), kind)
    assert len(matches) == 1, matches
    return matches[0]


def pod_templates(variant: str) -> dict[str, dict[str, Any]]:
    """Pod templates by role: ``serving``, ``daily``, ``Master`` or ``Worker``."""
    templates = {"serving": find_object("Deployment", variant)["spec"]["template"]}
    for manifest in objects_of(variant):
        if manifest["kind"] == "CronJob":
            templates["daily"] = manifest["spec"]["jobTemplate"]["spec"]["template"]
        if manifest["kind"] == "PyTorchJob":
            templates |= {role: spec["template"] for role, spec in manifest["spec"]["pytorchReplicaSpecs"].items()}
    return templates


def container_of(variant: str = "all", role: str = "serving") -> dict[str, Any]:
    (container,) = pod_templates(variant)[role]["spec"]["containers"]
    return dict(container)


def environment_of(variant: str) -> dict[str, str]:
    """Environment variables of the serving container; ``"2"`` for those that are references."""
    return {variable["name"]: variable.get("value", "2") for variable in container_of(variant)["env"]}


def supported_kubernetes_versions() -> list[str]:
    """The versions that docs/kubernetes.md names."""
    first, last = re.search(r"Kubernetes 1\.(\d+) to 1\.(\d+)", DOCS.read_text()).groups()  # type: ignore[union-attr]
    return [f"1.{minor}" for minor in range(int(first), int(last) + 1)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_chart_objects_match_schemas_of_supported_kubernetes_versions(variant: str) -> None:
    versions = supported_kubernetes_versions()
    for version in versions:
        for manifest in objects_of(variant):
            if manifest["kind"] not in CUSTOM_RESOURCE_SCHEMAS:
                kubernetes_validate.validate(manifest, version, strict=True)
        for template in pod_templates(variant).values():
            wrapped = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}
            kubernetes_validate.validate(wrapped, version, strict=True)
    assert versions[0] in yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]


def test_schema_validation_unknown_field_raises() -> None:
    deployment = json.loads(json.dumps(find_object("Deployment")))
    deployment["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["wait"] = 5
    with pytest.raises(kubernetes_validate.ValidationError, match="wait"):
        kubernetes_validate.validate(deployment, supported_kubernetes_versions()[-1], strict=True)


@pytest.mark.parametrize("kind", CUSTOM_RESOURCE_SCHEMAS)
def test_custom_resource_spec_matches_operator_schema(kind: str) -> None:
    jsonschema.validate(find_object(kind)["spec"], CUSTOM_RESOURCE_SCHEMAS[kind])


def test_chart_object_names_are_unique_and_carry_the_release() -> None:
    objects = objects_of("all")
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in objects]
    assert len(set(names)) == len(names)
    assert all(name.startswith("ranker") for _, name in names)
    assert all(manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == "ranker" for manifest in objects)


def test_probes_use_health_endpoints_and_tolerate_a_busy_process() -> None:
    container = container_of()
    startup, live, ready = (container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe"))
    assert startup["httpGet"] == {"path": "/v2/health/live", "port": "operations"}
    assert live["httpGet"] == {"path": "/v2/health/live", "port": "operations"}
    assert ready["httpGet"] == {"path": "/v2/health/ready", "port": "operations"}
    assert live["periodSeconds"] * live["failureThreshold"] >= 60
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 120
    drain_seconds = VALUES["settings"]["drain_seconds"]
    assert VALUES["preStopSeconds"] + drain_seconds > ready["periodSeconds"] * ready["failureThreshold"]


@pytest.mark.parametrize("values", [{}, {"preStopSeconds": 20, "settings": {"drain_seconds": 7, "grace_seconds": 60}}])
def test_termination_grace_period_covers_prestop_drain_and_grace(values: dict[str, Any]) -> None:
    (deployment,) = objects_of_kind(render_chart(values), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    seconds = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    seconds += int(variables["RANKER_DRAIN_SECONDS"]) + int(variables["RANKER_GRACE_SECONDS"])
    assert seconds < pod["terminationGracePeriodSeconds"] <= seconds + 10


@pytest.mark.parametrize("variant", VARIANTS)
def test_pods_run_unprivileged_on_a_read_only_root(variant: str) -> None:
    for template in pod_templates(variant).values():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
        security = spec["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"].keys() >= {"cpu", "memory"}
            assert container["resources"]["requests"] == container["resources"]["limits"], "resources are overcommitted"
            assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_serving_pod_mounts_repository_and_keys_read_only() -> None:
    mounts = {mount["mountPath"]: mount for mount in container_of()["volumeMounts"]}
    assert mounts["/repository"]["readOnly"]
    assert mounts["/etc/ranker/keys"]["readOnly"]
    # Kubernetes does not update subPath mounts when a Secret changes.
    assert "subPath" not in mounts["/etc/ranker/keys"]
    assert find_object("PersistentVolumeClaim", "default")["spec"]["accessModes"] == ["ReadWriteMany"]
    assert not objects_of_kind(objects_of("minimal"), "PersistentVolumeClaim")


@pytest.mark.parametrize("variant", VARIANTS)
def test_environment_variables_are_valid_service_settings(variant: str) -> None:
    variables = environment_of(variant)
    setting_names = {name.removeprefix("RANKER_").lower() for name in variables if name.startswith("RANKER_")}
    assert setting_names <= Settings.model_fields.keys()
    variables["RANKER_STORE"] = "redis://redis:6379"  # Read from a Secret in the chart.
    settings = load_settings({"repository": "/repository"}, environ=variables)
    assert settings.grace_seconds == VALUES["settings"]["grace_seconds"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_container_commands_parse_as_ranker_commands(variant: str) -> None:
    for role in pod_templates(variant):
        container = container_of(variant, role)
        words = container["command"] + container.get("args", [])
        if words[0] == "torchrun":
            assert words[:5] == ["torchrun", "-m", "--", "pipelines.cli", "train"]
            words = ["ranker", *words[4:]]
        build_parser().parse_args(words[1:])  # Exits with a usage error if the command is invalid.


@pytest.mark.parametrize("variant", ["default", "gpu"])
def test_threads_default_to_the_cpu_limit(variant: str) -> None:
    container = container_of(variant)
    assert container["resources"]["limits"]["cpu"] == container["resources"]["requests"]["cpu"]
    (threads,) = [variable for variable in container["env"] if variable["name"] == "RANKER_THREADS"]
    assert threads["valueFrom"]["resourceFieldRef"]["resource"] == "limits.cpu"


def test_gpu_values_request_one_gpu_per_process() -> None:
    for bound in ("requests", "limits"):
        assert container_of("gpu")["resources"][bound]["nvidia.com/gpu"] == 1
        assert "nvidia.com/gpu" not in container_of("default")["resources"][bound]
    assert environment_of("gpu")["RANKER_BACKEND"] == "cuda"
    assert container_of("gpu")["image"] == "dselect-ranker:gpu"
    job = find_object("PyTorchJob")["spec"]
    for role in job["pytorchReplicaSpecs"]:
        assert str(container_of(role=role)["resources"]["limits"]["nvidia.com/gpu"]) == job["nprocPerNode"]


def test_autoscaler_targets_queue_rows_and_cpu() -> None:
    autoscaler = find_object("HorizontalPodAutoscaler", "default")["spec"]
    queue, cpu = autoscaler["metrics"]
    assert queue["pods"]["metric"] == {"name": "ranker_queue_rows"}
    assert queue["pods"]["target"] == {"type": "AverageValue", "averageValue": str(QUEUE_ROWS)}
    assert cpu["resource"]["name"] == "cpu"
    assert autoscaler["minReplicas"] >= 2
    assert container_of("default")["resources"]["limits"]["cpu"] == str(CORES), "docs/scaling.md assumes CORES"
    assert "replicas" not in find_object("Deployment", "default")["spec"], "fixed replicas override the autoscaler"
    assert find_object("Deployment", "minimal")["spec"]["replicas"] == 2


def test_rolling_update_and_disruption_budget_keep_pods_serving() -> None:
    deployment, budget = find_object("Deployment")["spec"], find_object("PodDisruptionBudget")["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == deployment["selector"]


def test_network_policy_restricts_operations_port_to_monitoring() -> None:
    policy = find_object("NetworkPolicy")["spec"]
    assert policy["podSelector"] == find_object("Deployment")["spec"]["selector"]
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    peers = {rule["ports"][0]["port"]: rule["from"] for rule in policy["ingress"]}
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert peers == {"http": [{"namespaceSelector": {}}], "operations": [monitoring]}
    ports = {port["name"]: port["containerPort"] for port in container_of()["ports"]}
    assert ports == {"http": 8000, "operations": OPERATIONS_PORT}
    services = {
        service["metadata"]["name"]: service["spec"] for service in objects_of_kind(objects_of("all"), "Service")
    }
    assert [port["targetPort"] for port in services["ranker"]["ports"]] == ["http"]
    assert [port["targetPort"] for port in services["ranker-operations"]["ports"]] == ["operations"]


def test_monitoring_objects_contain_the_rules_and_dashboard_files() -> None:
    assert find_object("PrometheusRule")["spec"] == yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    dashboard = json.loads(find_object("ConfigMap")["data"]["ranker.json"])
    assert dashboard == json.loads((DEPLOY / "grafana" / "dashboards" / "ranker.json").read_text())
    monitor = find_object("ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (operations_labels,) = [
        service["metadata"]["labels"]
        for service in objects_of_kind(objects_of("all"), "Service")
        if service["spec"]["ports"][0]["name"] == monitor["spec"]["endpoints"][0]["port"]
    ]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= operations_labels.items()


def test_daily_job_has_deadline_and_forbids_concurrent_runs() -> None:
    job = find_object("CronJob")["spec"]
    assert job["concurrencyPolicy"] == "Forbid"
    spec = job["jobTemplate"]["spec"]
    assert 0 < spec["activeDeadlineSeconds"] <= 24 * 3600
    (rule,) = spec["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"]["values"] == [2, 3], "exit codes that a retry would repeat"
    assert {mount["mountPath"] for mount in container_of(role="daily")["volumeMounts"]} >= {"/repository", "/training"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replica": 3}, "'replica' not allowed"),
        ({"resources": {"limits": {"cpu": "500m"}}}, "/resources/limits/cpu"),
        ({"settings": {"workers": 2}}, "settings.threads: required if settings.workers > 1"),
        ({"settings": {"keys": "keys.json"}}, "invalid propertyName 'keys'"),
        ({"gpu": 2}, "/gpu"),
        ({"networkPolicy": {"monitoring": []}}, "/networkPolicy/monitoring"),
        ({"feedback": {"path": "/data"}}, "/feedback"),
        (
            {"feedback": {"enabled": True}, "settings": {"feedback_dir": "/data"}},
            "settings.feedback_dir: feedback.enabled",
        ),
        ({"feedback": {"claim": "mine", "emptyDir": True}}, "set either feedback.claim or feedback.emptyDir"),
        ({"extraVolumes": [{"emptyDir": {}}]}, "/extraVolumes/0"),
        ({"extraVolumeMounts": [{"name": "certificates"}]}, "/extraVolumeMounts/0"),
        ({"settings": {"max_candidates": "many"}}, "/settings/max_candidates"),
        ({"settings": {"slow_ms": -1}}, "/settings/slow_ms"),
        ({"image": {"digest": "sha256:abc"}}, "/image/digest"),
        ({"ingress": {"enabled": True}}, "/ingress/hosts"),
        ({"httpRoute": {"enabled": True}}, "/httpRoute/parentRefs"),
        ({"topologySpreadConstraints": [{"topologyKey": "zone"}]}, "/topologySpreadConstraints/0"),
    ],
)
def test_invalid_value_is_rejected_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RenderError, match=re.escape(message)):
        render_chart(values)


def test_settings_schema_matches_the_settings_of_the_service() -> None:
    block = chart_settings.BLOCK.search(chart_settings.SCHEMA_FILE.read_text())
    assert block is not None
    assert block[0] == chart_settings.settings_block(), "run: python .ci/chart_settings.py"
    names = chart_settings.setting_schemas().keys()
    assert names == Settings.model_fields.keys() - chart_settings.SET_BY_THE_CHART


def test_unknown_setting_is_rejected_with_the_names_of_all_settings() -> None:
    with pytest.raises(RenderError) as error:
        render_chart({"settings": {"max_candidate": 5}})
    assert "invalid propertyName 'max_candidate'" in str(error.value)
    assert all(f"'{name}'" in str(error.value) for name in chart_settings.setting_schemas())


FEEDBACK_VOLUMES: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({}, {"persistentVolumeClaim": {"claimName": "ranker-feedback"}}, ["ranker-feedback"]),
    ({"claim": "mine"}, {"persistentVolumeClaim": {"claimName": "mine"}}, []),
    ({"emptyDir": True, "size": "5Gi"}, {"emptyDir": {"sizeLimit": "5Gi"}}, []),
]


@pytest.mark.parametrize(("values", "source", "claims"), FEEDBACK_VOLUMES, ids=["new claim", "claim", "emptyDir"])
def test_feedback_volume_is_mounted_writable_at_feedback_dir(
    values: dict[str, Any], source: dict[str, Any], claims: list[str]
) -> None:
    objects = render_chart({"feedback": {"enabled": True, **values}})
    pod = objects_of_kind(objects, "Deployment")[0]["spec"]["template"]["spec"]
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "feedback"]
    assert volume == {"name": "feedback", **source}
    (container,) = pod["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "feedback"]
    assert not mount.get("readOnly")
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["RANKER_FEEDBACK_DIR"] == mount["mountPath"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"], "the volume is writable"
    created = {
        claim["metadata"]["name"]: claim["spec"]
        for claim in objects_of_kind(objects, "PersistentVolumeClaim")
        if claim["metadata"]["name"] != "ranker-repository"
    }
    assert list(created) == claims
    assert all(spec["accessModes"] == ["ReadWriteMany"] for spec in created.values()), "several pods write to it"


def test_feedback_is_disabled_by_default() -> None:
    assert "RANKER_FEEDBACK_DIR" not in environment_of("default")
    assert len(objects_of_kind(objects_of("default"), "PersistentVolumeClaim")) == 1


def test_extra_volumes_are_mounted_in_serving_pods() -> None:
    pod = pod_templates("all")["serving"]["spec"]
    assert VARIANTS["all"]["extraVolumes"][0] in pod["volumes"]
    assert VARIANTS["all"]["extraVolumeMounts"][0] in container_of()["volumeMounts"]
    for variant in VARIANTS:
        template = pod_templates(variant)["serving"]["spec"]
        mounted = {mount["name"] for mount in container_of(variant)["volumeMounts"]}
        assert mounted == {volume["name"] for volume in template["volumes"]}


def test_settings_are_rendered_as_written() -> None:
    settings = {"max_body_bytes": 20_000_000, "server_timing": True, "store_prefix": "1e6", "workers": 2, "threads": 1}
    (deployment,) = objects_of_kind(render_chart({"settings": settings}), "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["RANKER_MAX_BODY_BYTES"] == "20000000"
    assert variables["RANKER_SERVER_TIMING"] == "true"
    assert variables["RANKER_STORE_PREFIX"] == "1e6"
    assert variables["RANKER_THREADS"] == "1"


def test_image_digest_takes_precedence_over_the_tag() -> None:
    digest = "sha256:" + "0" * 64
    image = {"repository": "registry.example.com/ranker", "tag": "2", "digest": digest}
    objects = render_chart({"image": image, "training": {"image": image, "daily": {"enabled": True}}})
    (deployment,), (job,) = (objects_of_kind(objects, kind) for kind in ("Deployment", "CronJob"))
    for template in (deployment["spec"]["template"], job["spec"]["jobTemplate"]["spec"]["template"]):
        assert template["spec"]["containers"][0]["image"] == f"registry.example.com/ranker@{digest}"


@pytest.mark.parametrize(
    ("values", "account"),
    [
        ({}, "default"),
        ({"create": True}, "ranker"),
        ({"create": True, "name": "reader"}, "reader"),
        ({"name": "existing"}, "existing"),
    ],
)
def test_pods_use_the_service_account(values: dict[str, Any], account: str) -> None:
    objects = render_chart({"serviceAccount": values, "training": {"daily": {"enabled": True}}})
    (deployment,), (job,) = (objects_of_kind(objects, kind) for kind in ("Deployment", "CronJob"))
    for template in (deployment["spec"]["template"], job["spec"]["jobTemplate"]["spec"]["template"]):
        assert template["spec"]["serviceAccountName"] == account
    created = [manifest["metadata"]["name"] for manifest in objects_of_kind(objects, "ServiceAccount")]
    assert created == ([account] if values.get("create") else [])


def test_service_account_has_annotations_and_no_mounted_token() -> None:
    account = find_object("ServiceAccount")
    assert account["metadata"]["annotations"] == {"example.com/role": "models"}
    assert account["automountServiceAccountToken"] is False


def test_placement_values_apply_to_serving_and_training_pods() -> None:
    def placement(name: str) -> dict[str, Any]:
        node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]}}
        return {
            "priorityClassName": name,
            "nodeSelector": {"pool": name},
            "affinity": {"nodeAffinity": node},
            "tolerations": [{"key": name, "operator": "Exists"}],
        }

    training = placement("batch") | {"daily": {"enabled": True}, "distributed": {"enabled": True}}
    objects = render_chart(placement("online") | {"training": training})
    (deployment,), (job,), (distributed,) = (
        objects_of_kind(objects, kind) for kind in ("Deployment", "CronJob", "PyTorchJob")
    )
    assert deployment["spec"]["template"]["spec"].items() >= placement("online").items()
    assert job["spec"]["jobTemplate"]["spec"]["template"]["spec"].items() >= placement("batch").items()
    for replica in distributed["spec"]["pytorchReplicaSpecs"].values():
        assert replica["template"]["spec"].items() >= placement("batch").items()


def test_spread_constraints_select_the_serving_pods_unless_they_have_a_selector() -> None:
    zone = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    own = zone | {"labelSelector": {"matchLabels": {"app": "other"}}}
    (deployment,) = objects_of_kind(render_chart({"topologySpreadConstraints": [zone, own]}), "Deployment")
    constraints = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert constraints == [zone | {"labelSelector": deployment["spec"]["selector"]}, own]
    (default,) = find_object("Deployment", "default")["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert default["topologyKey"] == "kubernetes.io/hostname"
    (deployment,) = objects_of_kind(render_chart({"topologySpreadConstraints": []}), "Deployment")
    assert "topologySpreadConstraints" not in deployment["spec"]["template"]["spec"]


def test_ingress_and_route_expose_the_ranking_port_only() -> None:
    (service,) = [
        service for service in objects_of_kind(objects_of("all"), "Service") if service["metadata"]["name"] == "ranker"
    ]
    (port,) = service["spec"]["ports"]
    ingress = find_object("Ingress")["spec"]
    (rule,) = ingress["rules"]
    (path,) = rule["http"]["paths"]
    assert (ingress["ingressClassName"], rule["host"], path["path"]) == ("nginx", "rank.example.com", "/v1")
    assert path["backend"]["service"] == {"name": "ranker", "port": {"name": port["name"]}}
    assert ingress["tls"] == [{"secretName": "ranker-tls", "hosts": ["rank.example.com"]}]
    (rule,) = find_object("HTTPRoute")["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "ranker", "port": port["port"]}]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/v1"}}]
    assert not {"Ingress", "HTTPRoute", "ServiceAccount"} & {manifest["kind"] for manifest in objects_of("default")}
