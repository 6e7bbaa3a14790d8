"""Static tests of the Dockerfile and the lock files. deploy/try-image tests the built images."""

from __future__ import annotations

import json
import re
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


def pins(lock: str) -> dict[str, str]:
    """Pinned versions by package, including those of the lock files that it includes."""
    versions: dict[str, str] = {}
    for line in (LOCKS / f"{lock}.lock").read_text().splitlines():
        if line.startswith("-r "):
            versions |= pins(line.removeprefix("-r ").removesuffix(".lock"))
        elif line and not line.startswith("#"):
            name, version = line.split("==")
            versions[name] = version
    return versions


def test_base_image_is_a_build_argument() -> None:
    assert re.search(r"^ARG BASE_IMAGE=\S+:\S+$", DOCKERFILE, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+) AS", DOCKERFILE, re.MULTILINE)
    assert {base for base in bases if base not in re.findall(r" AS (\S+)$", DOCKERFILE, re.MULTILINE)} == {
        "${BASE_IMAGE}"
    }


def test_default_build_target_is_serve() -> None:
    assert re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)[-1] == "serve"


@pytest.mark.parametrize("image", ["serve", "train"])
def test_image_runs_as_non_root(image: str) -> None:
    assert f"FROM ranker AS {image}" in DOCKERFILE
    (user,) = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    assert all(int(part) > 0 for part in user)
    assert "USER" not in stage(image)


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


@pytest.mark.parametrize("lock", ["slim", "serve", "cuda"])
def test_serving_lock_excludes_training_packages(lock: str) -> None:
    assert not {"torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "scikit-learn", "optuna", "tensorboard"} & pins(lock).keys()


def test_slim_lock_omits_only_pytorch_and_its_dependencies() -> None:
    omitted = pins("serve").keys() - pins("slim").keys()
    assert omitted == {"torch", "filelock", "fsspec", "mpmath", "networkx", "sympy"}


def test_cuda_train_lock_pins_same_versions_as_train_lock() -> None:
    cpu, gpu = pins("train"), pins("cuda-train")
    assert cpu.pop("fbgemm-gpu-cpu") == gpu["fbgemm-gpu"]
    assert cpu.items() <= gpu.items()


def test_build_context_contains_all_packages() -> None:
    """If the build context lacked a package, the image would build but fail at startup."""
    included = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert included == {"LICENSE", "README.md", "pyproject.toml", "pipelines", "ranking", "requirements", "service"}
    assert all((ROOT / name).exists() for name in included)
