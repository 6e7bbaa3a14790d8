"""deploy/ray-job.yaml and deploy/spark-application.yaml: their pods are valid, and their commands and images exist.

Both were validated by hand against the definitions of KubeRay 1.7 and Spark Operator 2.5, which reject unknown fields.
"""

from __future__ import annotations

import os
import re
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.cli import __main__ as main_file
from pipelines.cli.main import build_parser
from requirements.lock import FOLDER, read_lock, read_pins
from tests.deploy.rendering import CHART, DEPLOY, render_chart, validate_object
from tests.deploy.test_chart import supported_kubernetes_versions
from tests.deploy.test_image import DOCKERFILE, stage
from tests.pipelines.test_engines import PYTHON

ROOT = DEPLOY.parent
FILES = {"ray": DEPLOY / "ray-job.yaml", "spark": DEPLOY / "spark-application.yaml"}
RAY, SPARK = (yaml.safe_load(file.read_text())["spec"] for file in FILES.values())
GUIDE = (ROOT / "docs" / "kubernetes.md").read_text()
ENTRYPOINT = DEPLOY / "spark-entrypoint"


def spark_pod(name: str) -> dict[str, Any]:
    """Specification of the driver's or executors' pod, from the fields that the operator copies to it."""
    role = SPARK[name]
    container = {key: role[key] for key in ("env", "envFrom", "securityContext", "volumeMounts")}
    return {
        "containers": [{"name": name, "image": SPARK["image"], **container}],
        "securityContext": role["podSecurityContext"],
        "volumes": SPARK["volumes"],
    }


CLUSTER: dict[str, Any] = RAY["rayClusterSpec"]
(GROUP,) = CLUSTER["workerGroupSpecs"]
WORKING: dict[str, list[dict[str, Any]]] = {
    "ray": [CLUSTER["headGroupSpec"]["template"]["spec"], GROUP["template"]["spec"]],
    "spark": [spark_pod("driver"), spark_pod("executor")],
}
"""Pod of the command, and of the workers."""
PODS = [RAY["submitterPodTemplate"]["spec"], *WORKING["ray"], *WORKING["spark"]]


def written_commands(engine: str) -> list[list[str]]:
    """Arguments of `ranker`: of the example, and those for scoring in its comment."""
    comment = re.findall(r"^#   (.*)$", FILES[engine].read_text(), re.MULTILINE)
    if engine == "spark":
        return [SPARK["arguments"], *map(yaml.safe_load, comment)]
    programs, commands = zip(*(line.split(" ", 1) for line in [RAY["entrypoint"], *comment]), strict=True)
    assert set(programs) == {"ranker"}
    return [command.split() for command in commands]


def parsed_commands(engine: str) -> list[Namespace]:
    return [build_parser().parse_args(command) for command in written_commands(engine)]


@pytest.mark.parametrize("engine", FILES)
def test_example_prepares_and_its_comment_scores_with_the_engine(engine: str) -> None:
    assert [command[0] for command in written_commands(engine)] == ["prepare", "score"]
    prepare, score = parsed_commands(engine)
    assert prepare.engine == score.engine == engine


def test_documented_training_continues_the_prepared_run() -> None:
    for engine in FILES:
        prepare, _ = parsed_commands(engine)
        assert f"args: [{prepare.config}, --run, {prepare.folder}, --resume]" in GUIDE


def test_pods_are_valid() -> None:
    for version in supported_kubernetes_versions():
        for spec in PODS:
            validate_object({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}, version)


def test_pods_are_as_confined_as_those_of_the_chart() -> None:
    objects = render_chart({"training": {"daily": {"enabled": True}}})
    (job,) = [rendered["spec"]["jobTemplate"] for rendered in objects if rendered["kind"] == "CronJob"]
    chart = job["spec"]["template"]["spec"]
    for spec in PODS:
        (container,) = spec["containers"]
        assert spec["securityContext"] == chart["securityContext"]
        assert container["securityContext"] == chart["containers"][0]["securityContext"]
        assert {"name": "HOME", "value": "/tmp"} in container["env"]
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


@pytest.mark.parametrize("engine", FILES)
def test_all_working_pods_see_the_folders_of_the_commands(engine: str) -> None:
    """Under the same paths and from the same claims; `HOME` and the scratch space are per pod."""
    claims = []
    for spec in WORKING[engine]:
        sources = {volume["name"]: volume.get("persistentVolumeClaim") for volume in spec["volumes"]}
        mounts = spec["containers"][0]["volumeMounts"]
        claims.append({mount["mountPath"]: (sources[mount["name"]], mount.get("readOnly", False)) for mount in mounts})
    assert claims[0] == claims[1]
    prepare, score = parsed_commands(engine)
    read = [prepare.config, score.bundle, score.logs]
    for path in map(Path, [*read, prepare.folder, score.out, temporary_folder(engine)]):
        claim, read_only = claims[0][f"/{path.parts[1]}"]
        assert claim is not None, path
        assert str(path) in map(str, read) or not read_only, path


def temporary_folder(engine: str) -> str:
    """Value of TMPDIR, which is the same in all pods that work."""
    if engine == "ray":
        return str(yaml.safe_load(RAY["runtimeEnvYAML"])["env_vars"]["TMPDIR"])
    values = [
        {variable["name"]: variable.get("value") for variable in spec["containers"][0]["env"]}["TMPDIR"]
        for spec in WORKING[engine]
    ]
    assert values[0] == values[1]
    return str(values[0])


@pytest.mark.parametrize("engine", FILES)
def test_working_pods_have_the_same_image_and_credentials(engine: str) -> None:
    """Ray's own folder must not be on the shared volume, so that TMPDIR is not a variable of its pods."""
    command, worker = (spec["containers"][0] for spec in WORKING[engine])
    for key in ("image", "env", "envFrom"):
        assert command[key] == worker[key]
    assert command["envFrom"] == [{"secretRef": {"name": "ranker-object-storage", "optional": True}}]
    assert "`ranker-object-storage`" in GUIDE
    assert ("TMPDIR" in str(command["env"])) == (engine == "spark")


def test_claims_and_images_are_those_of_the_chart() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    for engine in FILES:
        for spec in WORKING[engine]:
            assert spec["containers"][0]["image"] == f"REGISTRY/dselect-ranker-{engine}:{version}"
            claims = [volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"][:2]]
            assert claims == [values["training"]["claim"], "ranker-repository"]
        assert f"docker build -t REGISTRY/dselect-ranker-{engine}:{version} --target {engine} ." in GUIDE
        assert "COPY --from=" in stage(engine)
    assert RAY["submitterPodTemplate"]["spec"]["containers"][0]["image"].split(":")[0] == "REGISTRY/dselect-ranker-ray"


def test_versions_are_those_of_the_locked_packages() -> None:
    tested = read_pins(FOLDER / "engines" / "engines.lock")
    locks = {engine: read_lock(FOLDER / "engines" / f"{engine}.lock").pins for engine in FILES}
    assert CLUSTER["rayVersion"] == locks["ray"]["ray"].version == tested["ray"].version
    assert SPARK["sparkVersion"] == locks["spark"]["pyspark"].version == tested["pyspark"].version
    others = tested | read_pins(FOLDER / "dev.lock")
    for engine, pins in locks.items():
        assert f"/src/requirements/engines/{engine}.lock" in stage(f"{engine}-packages")
        assert not pins.keys() & read_pins(FOLDER / "train.lock").keys(), "packages of the training image"
        for name in pins.keys() & others.keys():
            assert pins[name] == others[name], name


def test_spark_starts_the_command_line_of_the_image() -> None:
    (home,) = re.findall(r"^ENV SPARK_HOME=(.*)$", stage("spark"), re.MULTILINE)
    site, name = os.path.split(home)
    assert name == "pyspark"
    assert f"deploy/remove-unused {site} " in DOCKERFILE
    file = Path(main_file.__file__).relative_to(ROOT)
    assert SPARK["mainApplicationFile"] == f"local://{site}/{file}"


def run_entrypoint(tmp_path: Path, *arguments: str, **variables: str) -> list[str]:
    """Arguments with which the entrypoint starts `spark-submit` or `java`."""
    (tmp_path / "bin").mkdir()
    for name in ("java", "spark-submit"):
        program = tmp_path / "bin" / name
        program.write_text('#!/bin/sh\nprintf "%s\\n" "${0##*/}" "$@"\n')
        program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SPARK_HOME": str(tmp_path), **variables}
    result = subprocess.run([ENTRYPOINT, *arguments], env=environment, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


def test_entrypoint_starts_a_driver(tmp_path: Path) -> None:
    started = run_entrypoint(tmp_path, "driver", "--class", "X", "local:///a b.py", SPARK_DRIVER_BIND_ADDRESS="::1")
    program, *options, first, second, third = started
    assert program == "spark-submit"
    assert options == ["--conf", "spark.driver.bindAddress=::1", "--deploy-mode", "client"]
    assert [first, second, third] == ["--class", "X", "local:///a b.py"]


def test_entrypoint_starts_an_executor(tmp_path: Path) -> None:
    names = ("DRIVER_URL", "APPLICATION_ID", "RESOURCE_PROFILE_ID")
    names += tuple(f"EXECUTOR_{name}" for name in ("ID", "CORES", "MEMORY", "POD_IP", "POD_NAME"))
    options = {f"SPARK_JAVA_OPT_{index}": f"-Dn={index} x" for index in range(12)}
    started = run_entrypoint(tmp_path, "executor", **{f"SPARK_{name}": name for name in names}, **options)
    assert started[:15] == ["java", *options.values(), "-XmsEXECUTOR_MEMORY", "-XmxEXECUTOR_MEMORY"]
    assert started[15:17] == ["-cp", f"{tmp_path}/jars/*"]
    assert dict(zip(started[18::2], started[19::2], strict=True)) == {
        "--driver-url": "DRIVER_URL",
        "--app-id": "APPLICATION_ID",
        "--executor-id": "EXECUTOR_ID",
        "--cores": "EXECUTOR_CORES",
        "--resourceProfileId": "RESOURCE_PROFILE_ID",
        "--hostname": "EXECUTOR_POD_IP",
        "--podName": "EXECUTOR_POD_NAME",
    }


@pytest.mark.nightly(short="test_entrypoint_starts_a_driver")
def test_driver_prepares_a_log(logs: Path, tmp_path: Path) -> None:
    """As Spark on Kubernetes starts it, with workers on this machine."""
    home = subprocess.run(
        [PYTHON, "-c", "import pyspark; print(pyspark.__path__[0])"], capture_output=True, text=True, check=True
    ).stdout.strip()
    (tmp_path / "spark.properties").write_text("spark.master=local[2]\n")
    command = [ENTRYPOINT, "driver", "--properties-file", tmp_path / "spark.properties"]
    command += ["--class", "org.apache.spark.deploy.PythonRunner", f"local://{main_file.__file__}"]
    command += ["prepare", logs / "ranker.toml", "--run", tmp_path / "run", "--engine", "spark"]
    path = f"{PYTHON.parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "SPARK_HOME": home, "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1"}
    environment |= {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=True)
    assert (tmp_path / "run" / "index.parquet").exists()
