"""Tests of the Helm chart: rendered by Helm, compared with snapshots and validated against the Kubernetes schemas.

    UPDATE_SNAPSHOTS=1 .venv/bin/pytest tests/deploy/test_chart.py

writes the snapshots; ``git diff`` then shows what a change of the chart changes in a cluster.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import settings_documents
import yaml

from benchmarks.serving.capacity import CORES, QUEUE_ROWS
from pipelines.cli.main import build_parser
from service.main import OPERATIONS_PORT
from service.settings import KILL_MARGIN_SECONDS, Settings, load_settings
from tests.deploy.rendering import CHART, DEPLOY, RenderError, render_charts, validate_object
from tests.support.snapshots import assert_matches_snapshot

DOCS = DEPLOY.parent / "docs" / "kubernetes.md"
CUSTOM_RESOURCE_SCHEMAS = json.loads((Path(__file__).parent / "custom_resources.json").read_text())
"""Schemas of custom resources by kind, with only the fields that the chart uses.

They are written by hand from the definitions of Kubeflow Trainer v2.2, KEDA v2.18, the Prometheus operator v0.80 and
the Gateway API v1. The pod templates inside custom resources are validated against the Kubernetes schemas.
"""

TRAIN_JOB_SCHEMA = CUSTOM_RESOURCE_SCHEMAS.pop("TrainJob")  # It is not part of the chart.

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
"""Default values of the chart."""

IMAGE = {"repository": "registry.example.com/ranker", "tag": "2", "digest": "sha256:" + "0" * 64}
ZONES = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}


def placement(name: str) -> dict[str, Any]:
    """Values that place pods on nodes."""
    node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]}}
    return {
        "priorityClassName": name,
        "nodeSelector": {"pool": name},
        "affinity": {"nodeAffinity": node},
        "tolerations": [{"key": name, "operator": "Exists"}],
    }


def merged(values: Any, other: Any) -> Any:
    """Values of two files, as Helm merges them."""
    if not (isinstance(values, dict) and isinstance(other, dict)):
        return other
    return values | {name: merged(values.get(name), value) for name, value in other.items()}


LOOP, KAFKA = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL))
"""Examples of the documentation: values of the loop, and those to add for Kafka."""
LOADS = {"training": {"daily": {"loadCounters": True}}}
"""Values with which the daily job loads counters, too."""

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "gpu": merged(
        yaml.safe_load((CHART / "values-gpu.yaml").read_text()),
        {
            "feedback": {"enabled": True, "claim": "mine"},
            "serviceAccount": {"name": "existing"},
            "store": {"secret": "redis"},
            "training": {"daily": {"enabled": True, "loadCounters": True}},
        },
    ),
    "all": placement("online")
    | {
        "image": IMAGE,
        "settings": {
            "drain_seconds": 7,
            "grace_seconds": 60,
            "copy_tables": False,
            "max_body_bytes": 20_000_000,
            "store_prefix": "1e6",
            "threads": 1,
            "workers": 2,
        },
        "preStopSeconds": 20,
        "topologySpreadConstraints": [ZONES, ZONES | {"labelSelector": {"matchLabels": {"app": "other"}}}],
        "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
        "store": {"secret": "redis"},
        "feedback": {"enabled": True},
        "extraVolumes": [{"name": "certificates", "configMap": {"name": "authorities"}}],
        "extraVolumeMounts": [{"name": "certificates", "mountPath": "/etc/ssl/redis", "readOnly": True}],
        "env": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://traces:4318"}],
        "training": placement("batch")
        | {
            "image": IMAGE,
            "daily": {"enabled": True},
            "distributed": {"enabled": True, "pods": 3, "gpus": 2},
        },
        "autoscaling": {"prometheus": "http://prometheus.monitoring:9090"},
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
        "feedback": {"enabled": True, "emptyDir": True, "size": "5Gi"},
        "servedLog": {"enabled": True, "userKeySecret": "users"},
        "keys": {"secret": ""},
        "autoscaling": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "serviceAccount": {"create": True, "name": "reader"},
        "topologySpreadConstraints": [],
        "training": {"distributed": {"enabled": True, "pods": 1}},
    },
    "loop": merged(LOOP, LOADS) | {"monitoring": {"enabled": True, "labels": {"release": "prometheus"}}},
    "kafka": merged(
        merged(merged(LOOP, LOADS), KAFKA),
        {
            "settings": {"store_prefix": "it's $HOME"},
            "servedLog": {"claim": "shared"},
            "training": {
                "model": "feed",
                "daily": {"window": "36h", "keepDays": 7},
                "follow": {"window": "1h"},
            },
        },
    ),
    "objects": merged(
        merged(LOOP, LOADS),
        {
            "repository": {"remote": "s3://bucket/models", "secret": "s3"},
            "servedLog": {"remote": "s3://bucket/served", "storageClass": "disk"},
            "feedback": {"remote": "s3://bucket/feedback/"},
        },
    ),
    "remote-serving": {"repository": {"remote": "gs://bucket/models"}},
    "remote": merged(
        LOOP, {"repository": {"remote": "s3://bucket/models", "secret": "s3", "accessMode": "ReadWriteOnce"}}
    ),
}
"""Values that together reach every branch of the templates."""

DAYS_OF_WINDOW = {"90m": None, "23h": None, "24h": 2, "86399s": None, "36h": 2, "1d": 2, "7d": 8}
"""Window of the daily job, and the number of days before today whose rows it tests on; None: the job decides."""
WINDOWS = {
    window: {name: LOOP[name] for name in ("feedback", "servedLog")}
    | {"training": {"daily": {"enabled": True, "window": window}}}
    for window in DAYS_OF_WINDOW
}

SNAPSHOTS = Path(__file__).parent / "snapshots"
"""The objects of each variant. The values that they show are explained in the templates."""
COPIES = {"PrometheusRule": "spec", "ConfigMap": "data"}
"""Fields that are copies of a file, which snapshots omit."""


@cache
def rendered_variants() -> dict[str, list[dict[str, Any]] | RenderError]:
    variants = VARIANTS | WINDOWS
    return dict(zip(variants, render_charts(list(variants.values())), strict=True))


def objects_of(variant: str) -> dict[str, dict[str, Any]]:
    """All objects that the chart renders for a variant, by kind and name."""
    objects = rendered_variants()[variant]
    assert not isinstance(objects, RenderError), objects
    named = {f"{manifest['kind']}/{manifest['metadata']['name']}": manifest for manifest in objects}
    assert len(named) == len(objects), "two objects have the same name"
    return named


def pod_templates(variant: str) -> dict[str, dict[str, Any]]:
    """Pod templates by role: ``serving``, ``daily``, ``follow``, ``collect``, ``collect-feedback``, ``training``."""
    templates = {}
    for manifest in objects_of(variant).values():
        if manifest["kind"] == "Deployment":
            template = manifest["spec"]["template"]
            templates[template["metadata"]["labels"]["app.kubernetes.io/component"]] = template
        if manifest["kind"] == "CronJob":
            templates["daily"] = manifest["spec"]["jobTemplate"]["spec"]["template"]
        if manifest["kind"] == "TrainingRuntime":
            (job,) = manifest["spec"]["template"]["spec"]["replicatedJobs"]
            templates["training"] = job["template"]["spec"]["template"]
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
def test_chart_objects_match_their_snapshot(variant: str) -> None:
    """The snapshots of other variants refer to that of the default values for objects that are equal."""
    shown = {}
    for name, manifest in objects_of(variant).items():
        omitted = COPIES.get(manifest["kind"])
        equal = variant != "default" and manifest == objects_of("default").get(name)
        shown[name] = "as in default.yaml" if equal else {k: v for k, v in manifest.items() if k != omitted}
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    text = yaml.dump(shown, Dumper=WithoutAliases, sort_keys=False, default_flow_style=None, width=120)
    assert_matches_snapshot(text.replace(version, "VERSION"), SNAPSHOTS / f"{variant}.yaml")


class WithoutAliases(yaml.SafeDumper):
    """Writes equal objects in full."""

    def ignore_aliases(self, data: object) -> bool:
        return True


OLDEST, *BETWEEN, NEWEST = supported_kubernetes_versions()


@pytest.mark.parametrize("version", [NEWEST, *(pytest.param(v, marks=pytest.mark.nightly) for v in (OLDEST, *BETWEEN))])
def test_chart_objects_match_schemas_of_supported_kubernetes_versions(version: str) -> None:
    """Protects installations: a cluster rejects or ignores unknown fields; validates every object for each version."""
    different: dict[str, dict[str, Any]] = {}
    for variant in VARIANTS:
        templates = [
            {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template}
            for role, template in pod_templates(variant).items()
            if role == "training"  # the others are parts of objects that Kubernetes defines
        ]
        for manifest in [*objects_of(variant).values(), *templates]:
            if manifest["kind"] not in CUSTOM_RESOURCE_SCHEMAS:
                different[json.dumps(manifest)] = manifest
    for manifest in different.values():
        validate_object(manifest, version)


def test_chart_requires_the_oldest_supported_kubernetes_version() -> None:
    assert OLDEST in yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]


def test_schema_validation_unknown_field_raises() -> None:
    deployment = deepcopy(objects_of("all")["Deployment/ranker"])
    deployment["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["wait"] = 5
    with pytest.raises(ValueError, match="wait"):
        validate_object(deployment, supported_kubernetes_versions()[-1])


def test_custom_resources_match_operator_schemas() -> None:
    validated = set()
    for manifest in [manifest for variant in VARIANTS for manifest in objects_of(variant).values()]:
        if manifest["kind"] in CUSTOM_RESOURCE_SCHEMAS:
            jsonschema_rs.validate(CUSTOM_RESOURCE_SCHEMAS[manifest["kind"]], manifest["spec"])
            validated.add(manifest["kind"])
    assert validated == CUSTOM_RESOURCE_SCHEMAS.keys()


def test_chart_objects_carry_the_release() -> None:
    for manifest in objects_of("all").values():
        assert manifest["metadata"]["name"].startswith("ranker")
        assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == "ranker"


def test_probes_tolerate_a_busy_process_and_notice_a_draining_one() -> None:
    container = container_of("default")
    startup, live, ready = (container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe"))
    assert live["periodSeconds"] * live["failureThreshold"] >= 60
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 120
    drain_seconds = VALUES["settings"]["drain_seconds"]
    assert VALUES["preStopSeconds"] + drain_seconds > ready["periodSeconds"] * ready["failureThreshold"]


@pytest.mark.parametrize("variant", ["default", "all"])
def test_termination_grace_period_covers_prestop_drain_grace_and_closing(variant: str) -> None:
    variables = environment_of(variant)
    seconds = container_of(variant)["lifecycle"]["preStop"]["sleep"]["seconds"]
    seconds += int(variables["RANKER_DRAIN_SECONDS"]) + int(variables["RANKER_GRACE_SECONDS"])
    period = pod_templates(variant)["serving"]["spec"]["terminationGracePeriodSeconds"]
    assert seconds + KILL_MARGIN_SECONDS < period <= seconds + KILL_MARGIN_SECONDS + 10


def test_every_pod_is_unprivileged_and_mounts_its_volumes() -> None:
    for variant in VARIANTS:
        for role, template in pod_templates(variant).items():
            spec, container = template["spec"], container_of(variant, role)
            assert spec["automountServiceAccountToken"] is False
            assert spec["securityContext"]["runAsNonRoot"]
            assert spec["securityContext"]["runAsUser"] > 0
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"].keys() >= {"cpu", "memory"}
            assert container["resources"]["requests"] == container["resources"]["limits"], "resources are overcommitted"
            assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
            assert {mount["name"] for mount in container["volumeMounts"]} == {
                volume["name"] for volume in spec["volumes"]
            }


def test_environment_variables_are_valid_service_settings() -> None:
    for variant, values in VARIANTS.items():
        variables = environment_of(variant)
        setting_names = {name.removeprefix("RANKER_").lower() for name in variables if name.startswith("RANKER_")}
        assert setting_names <= Settings.model_fields.keys()
        variables["RANKER_STORE"] = "redis://redis:6379"  # Read from a Secret in the chart.
        settings = load_settings({"repository": "/repository"}, environ=variables)
        written = VALUES["settings"] | values.get("settings", {})
        assert settings.model_dump().items() >= written.items()


def test_container_commands_parse_as_ranker_commands(tmp_path: Path) -> None:
    for variant in VARIANTS:
        for role in pod_templates(variant):
            container = container_of(variant, role)
            words = container["command"] + container.get("args", [])
            if words[0] == "torchrun":
                assert words == ["torchrun", "-m", "--", "pipelines.cli", "train"], "the TrainJob has the arguments"
                continue
            commands = run_script(variant, tmp_path)[1] if words[0] == "sh" else [words]
            for command in commands:
                if command[0] == "ranker":
                    build_parser().parse_args(command[1:])  # Exits with a usage error if the command is invalid.


def run_script(variant: str, folder: Path, **statuses: int) -> tuple[int, list[list[str]]]:
    """Run the script of the daily job with programs that only record their arguments.

    Args:
        variant: the variant.
        folder: folder for the programs.
        statuses: exit statuses of ``daily``, ``counters`` and ``find``; default: 0.

    Returns:
        The exit status of the script, and the commands that it ran.
    """
    record = folder / "record"
    record.write_text("")
    for program in ("ranker", "find"):
        (folder / program).write_text(
            f'#!/bin/sh\nprintf "%s\\0" {program} "$@" >> {record}; printf "\\n" >> {record}\n'
            f"case {program}$1 in {' '.join(f'*{name}*) exit {status} ;;' for name, status in statuses.items())} esac\n"
        )
        (folder / program).chmod(0o755)
    container = container_of(variant, "daily")
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    script = subprocess.run([*container["command"], *container["args"]], env=environment, check=False)
    return script.returncode, [line.split("\0")[:-1] for line in record.read_text().splitlines()]


@pytest.mark.parametrize(
    ("variant", "statuses", "status", "programs"),
    [
        ("loop", {}, 0, ["daily", "counters", "find"]),
        ("loop", {"daily": 1}, 1, ["daily"]),
        ("loop", {"daily": 2}, 2, ["daily"]),
        ("loop", {"daily": 3}, 3, ["daily", "counters", "find"]),
        ("loop", {"daily": 4}, 4, ["daily", "counters", "find"]),
        ("loop", {"daily": 137}, 137, ["daily"]),
        ("loop", {"counters": 1}, 1, ["daily", "counters"]),
        ("loop", {"daily": 4, "counters": 1}, 1, ["daily", "counters"]),
        ("loop", {"find": 1}, 1, ["daily", "counters", "find"]),
        ("remote", {}, 0, ["pull", "daily", "push", "find"]),
        ("remote", {"pull": 1}, 1, ["pull"]),
        ("remote", {"daily": 1}, 1, ["pull", "daily"]),
        ("remote", {"daily": 3}, 3, ["pull", "daily", "push", "find"]),
        ("remote", {"push": 1}, 1, ["pull", "daily", "push"]),
    ],
)
def test_daily_job_loads_and_pushes_unless_daily_failed(
    variant: str, statuses: dict[str, int], status: int, programs: list[str], tmp_path: Path
) -> None:
    returned, commands = run_script(variant, tmp_path, **statuses)
    assert returned == status
    assert [words[1] if words[0] == "ranker" else words[0] for words in commands] == programs


def test_daily_job_retries_only_failed_steps() -> None:
    for variant, statuses in (("all", [2, 3]), ("loop", [2, 3, 4])):
        job = objects_of(variant)["CronJob/ranker-daily"]["spec"]["jobTemplate"]["spec"]
        (rule,) = job["podFailurePolicy"]["rules"]
        assert rule["action"] == "FailJob"
        assert rule["onExitCodes"] == {"containerName": "daily", "operator": "In", "values": statuses}


@pytest.mark.parametrize(("window", "days"), DAYS_OF_WINDOW.items())
def test_daily_job_with_a_long_window_tests_on_an_earlier_day(window: str, days: int | None, tmp_path: Path) -> None:
    before = datetime.now(UTC).date()
    command, deletion = run_script(window, tmp_path)[1]
    assert deletion[0] == "find", "without a store, the job loads no counters"
    arguments = build_parser().parse_args(command[1:])
    dates = {date - timedelta(days=days or 0) for date in (before, datetime.now(UTC).date())}
    assert arguments.day in (dates if days else {None})


def test_pods_of_the_loop_use_the_folders_and_keys_of_the_service(tmp_path: Path) -> None:
    for variant in ("loop", "kafka", "objects"):
        settings = environment_of(variant)
        parse = build_parser().parse_args
        words = [command for command in run_script(variant, tmp_path)[1] if command[1] not in ("pull", "push")]
        daily_words, load_words = words[:2]
        follow_container = container_of(variant, "follow")
        daily, load = parse(daily_words[1:]), parse(load_words[1:])
        follow = parse(follow_container["command"][1:] + follow_container["args"])
        assert daily.feedback == follow.feedback
        assert daily.served == follow.served
        assert load.prefix == follow.prefix == settings.get("RANKER_STORE_PREFIX", "ranker")
        assert load.model == follow.model == (VARIANTS[variant]["training"].get("model") or None)
        assert follow.metrics_port == follow_container["ports"][0]["containerPort"]
        if variant == "loop":
            assert daily.served == Path(settings["RANKER_SERVED_LOG"])
            assert daily.feedback == Path(settings["RANKER_FEEDBACK_DIR"])
        else:
            for role, name, folder in (
                ("collect", "SERVED_LOG", daily.served),
                ("collect-feedback", "FEEDBACK_DIR", daily.feedback),
            ):
                container = container_of(variant, role)
                collect = parse(container["command"][1:] + container["args"])
                assert str(collect.source) == settings[f"RANKER_{name}"]
                assert collect.to == folder
                assert (collect.group is None) == (variant == "objects")
        claims: dict[str, set[str]] = {}
        for role in pod_templates(variant):
            spec = pod_templates(variant)[role]["spec"]
            sources = {volume["name"]: volume.get("persistentVolumeClaim") for volume in spec["volumes"]}
            for mount in container_of(variant, role)["volumeMounts"]:
                if (claim := sources[mount["name"]]) is not None:
                    claims.setdefault(mount["mountPath"], set()).add(claim["claimName"])
        assert {path: len(names) for path, names in claims.items()} == dict.fromkeys(claims, 1)
        assert {str(daily.served), str(daily.feedback), "/repository", "/training"} == claims.keys()


def test_files_are_written_only_where_a_pod_has_to() -> None:
    """The daily job deletes old files of feedback, and of a served log that no service deletes."""
    writers: dict[str, dict[str, set[str]]] = {}
    for variant in ("loop", "kafka", "objects"):
        writers[variant] = {"served": set(), "feedback": set(), "repository": set()}
        for role in pod_templates(variant):
            for mount in container_of(variant, role)["volumeMounts"]:
                if mount["name"] in writers[variant] and not mount.get("readOnly"):
                    writers[variant][mount["name"]].add(role)
    jobs = {"repository": {"daily"}}
    assert writers["loop"] == jobs | {"served": {"serving"}, "feedback": {"serving", "daily"}}
    collected = {"served": {"collect", "daily"}, "feedback": {"collect-feedback", "daily"}}
    assert writers["kafka"] == jobs | collected
    copies = {"daily", "serving", "follow"}  # of the repository
    assert writers["objects"] == {"repository": copies} | collected


def test_pods_copy_the_repository_from_object_storage_and_only_jobs_mount_the_claim() -> None:
    variables = environment_of("remote")
    assert variables["RANKER_REMOTE"] == "s3://bucket/models"
    for role, template in pod_templates("remote").items():
        container = container_of("remote", role)
        assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
        (volume,) = [volume for volume in template["spec"]["volumes"] if volume["name"] == "repository"]
        assert ("persistentVolumeClaim" in volume) == (role == "daily")
        (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "repository"]
        assert not mount.get("readOnly")
    assert "--remote=s3://bucket/models" in container_of("remote", "follow")["args"]
    assert "PersistentVolumeClaim/ranker-repository" not in objects_of("remote-serving")
    assert objects_of("remote")["PersistentVolumeClaim/ranker-repository"]["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_daily_job_deletes_old_files_that_no_service_deletes(tmp_path: Path) -> None:
    feedback = ["find", "/feedback", "-maxdepth", "1", "-name", "feedback-*.jsonl", "-mmin"]
    served = ["find", "/served", "-maxdepth", "1", "-name", "served-*.parquet", "-mmin"]
    month, week = ([f"+{days * 24 * 60}", "-delete"] for days in (30, 7))
    assert run_script("loop", tmp_path)[1][2:] == [feedback + month]
    assert run_script("kafka", tmp_path)[1][2:] == [feedback + week, served + week]


def test_every_pod_has_one_network_policy_that_closes_its_egress() -> None:
    for variant in ("all", "loop", "kafka"):
        policies = [o["spec"] for o in objects_of(variant).values() if o["kind"] == "NetworkPolicy"]
        for role, template in pod_templates(variant).items():
            labels = template["metadata"]["labels"]
            (policy,) = [policy for policy in policies if selects(policy["podSelector"], labels)]
            assert policy["policyTypes"] == ["Ingress", "Egress"]
            dns, *rules = policy["egress"]
            assert {port["port"] for port in dns["ports"]} == {53}
            values = VARIANTS[variant]["networkPolicy"]
            ranks = [rule["from"] for rule in policy["ingress"] if "ports" not in rule]
            assert rules == [{"to": peers} for peers in ranks] + (
                values["egress"] if role == "serving" else values.get("trainingEgress", [])
            )
            if role == "training":
                assert selects(ranks[0][0]["podSelector"], labels)
            open_ports = {port["port"] for rule in policy["ingress"] for port in rule.get("ports", ())}
            assert {port["name"] for port in container_of(variant, role).get("ports", ())} <= open_ports


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a selector of pods matches labels."""
    expressions = selector.get("matchExpressions", ())
    return selector["matchLabels"].items() <= labels.items() and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )


def test_monitoring_scrapes_follow_as_a_job_of_its_own() -> None:
    """Alerts on the service select the job ``ranker``."""
    monitor = objects_of("loop")["PodMonitor/ranker-follow"]
    assert selects(monitor["spec"]["selector"], pod_templates("loop")["follow"]["metadata"]["labels"])
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == container_of("loop", "follow")["ports"][0]["name"]
    assert "relabelings" not in endpoint
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_chart_values_are_those_that_the_documentation_and_the_service_assume() -> None:
    queue, _ = objects_of("default")["HorizontalPodAutoscaler/ranker"]["spec"]["metrics"]
    assert queue["pods"]["target"]["averageValue"] == str(QUEUE_ROWS)
    assert container_of("default")["resources"]["limits"]["cpu"] == str(CORES), "docs/scaling.md assumes CORES"
    ports = {port["name"]: port["containerPort"] for port in container_of()["ports"]}
    assert ports == {"http": 8000, "operations": OPERATIONS_PORT}


def test_distributed_training_has_the_names_that_kubeflow_trainer_requires() -> None:
    """It gives torchrun its environment variables in the container ``node`` of the job with this label only."""
    runtime = objects_of("all")["TrainingRuntime/ranker"]["spec"]
    (replicated,) = runtime["template"]["spec"]["replicatedJobs"]
    assert replicated["name"] == container_of(role="training")["name"] == "node"
    assert replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert runtime["mlPolicy"] == {"numNodes": 3, "torch": {}}
    assert replicated["template"]["spec"]["backoffLimit"] == 3 * 3, "Kubernetes adds up the restarts of all pods"
    assert container_of(role="training")["resources"]["limits"]["nvidia.com/gpu"] == 2


def test_documented_train_job_fits_the_chart() -> None:
    match = re.search(r"kubectl create -n feed -f - <<END\n(.*?)\nEND", DOCS.read_text(), re.DOTALL)
    assert match is not None
    job = yaml.safe_load(match[1])
    runtime = objects_of("minimal")["TrainingRuntime/ranker"]
    assert job["apiVersion"] == runtime["apiVersion"]
    group = job["apiVersion"].partition("/")[0]
    jsonschema_rs.validate(TRAIN_JOB_SCHEMA, job["spec"])
    assert job["spec"]["runtimeRef"] == {"apiGroup": group, "kind": runtime["kind"], "name": "ranker"}
    trainer, values = job["spec"]["trainer"], VALUES["training"]
    assert trainer["numNodes"] == values["distributed"]["pods"]
    assert str(trainer["numProcPerNode"]) == values["distributed"]["resources"]["limits"]["cpu"]
    arguments = build_parser().parse_args(["train", *trainer["args"]])
    assert (str(arguments.config), arguments.resume) == (values["config"], True)
    assert str(arguments.folder) == f"{values['runs']}/{job['metadata']['name']}"


def test_autoscaler_is_the_same_with_keda() -> None:
    """KEDA creates a HorizontalPodAutoscaler with these values."""
    objects = objects_of("all")
    assert "HorizontalPodAutoscaler/ranker" not in objects, "two autoscalers would work against each other"
    own, keda = objects_of("default")["HorizontalPodAutoscaler/ranker"]["spec"], objects["ScaledObject/ranker"]["spec"]
    queue, cpu = own["metrics"]
    prometheus, percent = keda["triggers"]
    assert prometheus["metricType"] == queue["pods"]["target"]["type"]
    assert prometheus["metadata"]["threshold"] == queue["pods"]["target"]["averageValue"]
    assert percent["metadata"]["value"] == str(cpu["resource"]["target"]["averageUtilization"])
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == own["behavior"]
    assert keda["scaleTargetRef"]["name"] == own["scaleTargetRef"]["name"]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (own["minReplicas"], own["maxReplicas"])


def test_keda_queries_the_pods_of_the_release_only() -> None:
    """The labels are those that the ServiceMonitor gives to the series of the operations service."""
    objects = objects_of("all")
    labels = 'job="ranker",namespace="feed",service="ranker-operations"'
    query = objects["ScaledObject/ranker"]["spec"]["triggers"][0]["metadata"]["query"]
    assert query == f"sum(avg_over_time(ranker_queue_rows{{{labels}}}[2m]))"
    assert "Service/ranker-operations" in objects
    (endpoint,) = objects["ServiceMonitor/ranker"]["spec"]["endpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "ranker"}]


def test_objects_select_the_pods_and_ports_of_the_release() -> None:
    objects = objects_of("all")
    selector = objects["Deployment/ranker"]["spec"]["selector"]
    assert objects["PodDisruptionBudget/ranker"]["spec"]["selector"] == selector
    assert objects["NetworkPolicy/ranker"]["spec"]["podSelector"] == selector
    own, other = pod_templates("all")["serving"]["spec"]["topologySpreadConstraints"]
    assert own["labelSelector"] == selector != other["labelSelector"]
    services = {name: objects[f"Service/{name}"] for name in ("ranker", "ranker-operations")}
    for service, target in zip(services.values(), ("http", "operations"), strict=True):
        assert [port["targetPort"] for port in service["spec"]["ports"]] == [target]
    (port,) = services["ranker"]["spec"]["ports"]
    (path,) = objects["Ingress/ranker"]["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"] == {"name": "ranker", "port": {"name": port["name"]}}
    (rule,) = objects["HTTPRoute/ranker"]["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": "ranker", "port": port["port"]}]
    monitor, operations = objects["ServiceMonitor/ranker"]["spec"], services["ranker-operations"]
    assert monitor["endpoints"][0]["port"] == operations["spec"]["ports"][0]["name"]
    assert monitor["selector"]["matchLabels"].items() <= operations["metadata"]["labels"].items()


def test_monitoring_objects_contain_the_rules_and_dashboard_files() -> None:
    objects = objects_of("all")
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    assert objects["PrometheusRule/ranker"]["spec"] == rules
    dashboard = json.loads(objects["ConfigMap/ranker-dashboard"]["data"]["ranker.json"])
    assert dashboard == json.loads((DEPLOY / "grafana" / "dashboards" / "ranker.json").read_text())


def test_feedback_volume_is_mounted_writable_at_feedback_dir() -> None:
    for variant in ("all", "minimal", "gpu"):
        (mount,) = [mount for mount in container_of(variant)["volumeMounts"] if mount["name"] == "feedback"]
        assert not mount.get("readOnly")
        assert environment_of(variant)["RANKER_FEEDBACK_DIR"] == mount["mountPath"]
        security = pod_templates(variant)["serving"]["spec"]["securityContext"]
        assert security["fsGroup"] == security["runAsGroup"], "the volume is writable"


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"replica": 3}, "'replica' not allowed"),
    ({"resources": {"limits": {"cpu": "500m"}}}, "/resources/limits/cpu"),
    ({"settings": {"workers": 2}}, "settings.threads: required if settings.workers > 1"),
    ({"settings": {"keys": "keys.json"}}, "invalid propertyName 'keys'"),
    ({"gpu": 2}, "/gpu"),
    ({"autoscaling": {"prometheus": "prometheus:9090"}}, "/autoscaling/prometheus"),
    ({"autoscaling": {"prometheus": "http://p:9090"}}, "autoscaling.prometheus: requires monitoring.enabled"),
    ({"networkPolicy": {"monitoring": []}}, "/networkPolicy/monitoring"),
    ({"feedback": {"path": "/data"}}, "/feedback"),
    (
        {"feedback": {"enabled": True}, "settings": {"feedback_dir": "/data"}},
        "settings.feedback_dir: feedback.enabled",
    ),
    (
        {"feedback": {"kafka": "kafka://b:9092/t"}, "servedLog": {"kafka": "kafka://b:9092/t"}},
        "feedback.kafka: is also servedLog.kafka",
    ),
    (
        {"feedback": {"remote": "s3://b/t/"}, "servedLog": {"remote": "s3://b/t"}},
        "feedback.remote: is also servedLog.remote",
    ),
    (
        {"servedLog": {"kafka": "kafka://b:9092/t", "remote": "s3://b/t"}},
        "servedLog.remote: set either servedLog.kafka or servedLog.remote",
    ),
    (
        {"feedback": {"kafka": "kafka://b:9092/t", "emptyDir": True}},
        "feedback.emptyDir: without feedback.kafka and feedback.remote only",
    ),
    ({"feedback": {"remote": "s3:/b"}}, "/feedback/remote"),
    ({"feedback": {"claim": "mine", "emptyDir": True}}, "set either feedback.claim or feedback.emptyDir"),
    (
        {"servedLog": {"enabled": True}, "settings": {"served_log": "/data"}},
        "settings.served_log: servedLog.enabled determines it",
    ),
    ({"servedLog": {"kafka": "broker:9092/served"}}, "/servedLog/kafka"),
    ({"feedback": {"kafka": "kafka://broker/feedback"}}, "/feedback/kafka"),
    ({"servedLog": {"size": "10"}}, "/servedLog/size"),
    ({"training": {"daily": {"window": "1 day"}}}, "/training/daily/window"),
    ({"training": {"daily": {"keepDays": 0}}}, "/training/daily/keepDays"),
    ({"training": {"follow": {"window": ""}}}, "/training/follow/window"),
    (
        {"training": {"collect": {"resources": {"limits": {"cpu": "0.5"}}}}},
        "/training/collect/resources/limits/cpu",
    ),
    (
        {"training": {"daily": {"enabled": True, "window": "3h"}}},
        "training.daily.window: requires servedLog.enabled and feedback.enabled",
    ),
    (
        merged(LOOP, {"feedback": {"emptyDir": True}, "training": {"follow": {"enabled": False}}}),
        "training.daily.window: only the serving pod can read feedback.emptyDir",
    ),
    (
        merged(LOOP, {"training": {"daily": {"window": "29d"}}}),
        "training.daily.keepDays: the job reads feedback of the window",
    ),
    (
        merged(merged(LOOP, LOADS), {"store": {"secret": ""}, "training": {"follow": {"enabled": False}}}),
        "training.daily.loadCounters: requires store.secret",
    ),
    (
        {"training": {"follow": {"enabled": True}}},
        "training.follow: requires servedLog.enabled and feedback.enabled",
    ),
    (
        merged(LOOP, {"store": {"secret": ""}, "training": {"daily": {"enabled": False}}}),
        "training.follow: requires store.secret",
    ),
    (merged(LOOP, {"servedLog": {"userKeySecret": "users"}}), "training.follow: servedLog.userKeySecret hashes"),
    ({"repository": {"remote": "hdfs://models"}}, "/repository/remote"),
    ({"repository": {"remote": "s3://bucket/$(id)"}}, "/repository/remote"),
    ({"repository": {"accessMode": "ReadOnlyMany"}}, "/repository/accessMode"),
    ({"settings": {"remote": "s3://bucket/models"}}, "invalid propertyName 'remote'"),
    ({"extraVolumes": [{"emptyDir": {}}]}, "/extraVolumes/0"),
    ({"extraVolumeMounts": [{"name": "certificates"}]}, "/extraVolumeMounts/0"),
    ({"settings": {"max_candidates": "many"}}, "/settings/max_candidates"),
    ({"settings": {"slow_ms": -1}}, "/settings/slow_ms"),
    ({"image": {"digest": "sha256:abc"}}, "/image/digest"),
    ({"ingress": {"enabled": True}}, "/ingress/hosts"),
    ({"httpRoute": {"enabled": True}}, "/httpRoute/parentRefs"),
    ({"topologySpreadConstraints": [{"topologyKey": "zone"}]}, "/topologySpreadConstraints/0"),
]
"""Invalid values, and a part of the error message."""


def test_invalid_values_are_rejected_by_name() -> None:
    for (values, message), result in zip(INVALID, render_charts([values for values, _ in INVALID]), strict=True):
        assert isinstance(result, RenderError), values
        assert message in str(result)


def test_settings_schema_matches_the_settings_of_the_service() -> None:
    block = settings_documents.BLOCK.search(settings_documents.SCHEMA_FILE.read_text())
    assert block is not None
    assert block[0] == settings_documents.settings_block(), "run: python .ci/settings_documents.py"
    names = settings_documents.setting_schemas().keys()
    assert names == Settings.model_fields.keys() - settings_documents.SET_BY_THE_CHART


def test_unknown_setting_is_rejected_with_the_names_of_all_settings() -> None:
    (error,) = render_charts([{"settings": {"max_candidate": 5}}])
    assert "invalid propertyName 'max_candidate'" in str(error)
    assert all(f"'{name}'" in str(error) for name in settings_documents.setting_schemas())
