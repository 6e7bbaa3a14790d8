"""Static tests of the Dockerfile, and deploy/try-image on the built images."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
LOCKS = ROOT / "requirements"


def stage(name: str) -> str:
    """Instructions of one build stage."""
    match = re.search(rf"^FROM \S+ AS {name}$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert match, name
    return match[1]


def test_base_image_is_a_build_argument() -> None:
    assert re.search(r"^ARG BASE_IMAGE=\S+:\S+$", DOCKERFILE, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+) AS", DOCKERFILE, re.MULTILINE)
    assert {base for base in bases if base not in re.findall(r" AS (\S+)$", DOCKERFILE, re.MULTILINE)} == {
        "${BASE_IMAGE}"
    }


def test_default_build_target_is_serve() -> None:
    assert re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)[-1] == "serve"


def test_images_run_as_non_root() -> None:
    (user,) = re.findall(r"^USER (.*)$", stage("ranker"), re.MULTILINE)
    assert all(int(part) > 0 for part in user.split(":"))
    for image in ("serve", "train", "ray", "spark"):
        assert f"FROM ranker AS {image}" in DOCKERFILE
        users = re.findall(r"^USER (.*)$", stage(image), re.MULTILINE)
        assert users == (["root", user] if image == "spark" else [])


def test_image_version_label_matches_pyproject() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f'org.opencontainers.image.version="{version}"' in DOCKERFILE


def test_health_check_is_valid_python() -> None:
    match = re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert match
    python, option, program = json.loads(match[1])
    assert (python, option) == ("python", "-c")
    compile(program, "HEALTHCHECK", "exec")


def test_lock_files_named_in_dockerfile_exist() -> None:
    names = set(re.findall(r"(?:SERVE|TRAIN)=(\S+)", DOCKERFILE.replace(".", " ")))
    assert names == {"serve", "slim", "train", "cuda", "cuda-train"}
    assert all((LOCKS / f"{name}.lock").is_file() for name in names)


def test_build_context_contains_all_packages() -> None:
    """If the build context lacked a package, the image would build but fail at startup."""
    included = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert included == {
        "LICENSE",
        "NOTICE",
        "README.md",
        "deploy/remove-unused",
        "deploy/spark-entrypoint",
        "pyproject.toml",
        "pipelines",
        "ranking",
        "requirements",
        "service",
    }
    assert all((ROOT / name).exists() for name in included)


def imports_its_tests(init: Path) -> bool:
    """Return whether importing a package imports its tests, which deploy/remove-unused removes from images."""
    imports = [node for node in ast.parse(init.read_bytes()).body if isinstance(node, ast.ImportFrom) and node.level]
    return any("tests" in [node.module, *(alias.name for alias in node.names)] for node in imports)


def test_remove_unused_keeps_tests_that_packages_import() -> None:
    site = Path(sysconfig.get_paths()["purelib"])
    names = {init.parent.name for init in site.glob("*/__init__.py") if imports_its_tests(init)}
    script = (ROOT / "deploy" / "remove-unused").read_text()
    assert "pyre_extensions" in names, "a package that TorchRec imports"
    assert {name for name in names if f"! -path ./{name}/tests" not in script} == set()


IMAGES = ["dselect-ranker", "dselect-ranker-slim", "dselect-ranker-train"]


@pytest.mark.nightly(short="test_images_run_as_non_root")
def test_built_images_train_serve_and_stop_as_in_a_cluster() -> None:
    """Build the images with buildah first, see docs/deployment.md."""
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed")
    listed = subprocess.run(["buildah", "images", "--format", "{{.Name}}"], capture_output=True, text=True, check=True)
    missing = [name for name in IMAGES if f"localhost/{name}" not in listed.stdout.split()]
    if missing:
        pytest.skip(f"not built: {', '.join(missing)}")
    result = subprocess.run([ROOT / "deploy" / "try-image"], capture_output=True, text=True, check=False)
    print(result.stdout)
    assert result.returncode == 0, result.stderr
