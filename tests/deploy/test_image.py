"""What can be said of the images without building them; deploy/try-image builds on nothing but what they are."""

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
    """The instructions of one stage."""
    found = re.search(rf"^FROM \S+ AS {name}$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


def pins(lock: str) -> dict[str, str]:
    """Package → version, those of the locks that it builds on among them."""
    found: dict[str, str] = {}
    for line in (LOCKS / f"{lock}.lock").read_text().splitlines():
        if line.startswith("-r "):
            found |= pins(line.removeprefix("-r ").removesuffix(".lock"))
        elif line and not line.startswith("#"):
            name, version = line.split("==")
            found[name] = version
    return found


def test_the_base_is_an_argument() -> None:
    assert re.search(r"^ARG BASE_IMAGE=\S+:\S+$", DOCKERFILE, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+) AS", DOCKERFILE, re.MULTILINE)
    assert {base for base in bases if base not in re.findall(r" AS (\S+)$", DOCKERFILE, re.MULTILINE)} == {
        "${BASE_IMAGE}"
    }


def test_serving_is_the_default() -> None:
    assert re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE)[-1] == "serve"


@pytest.mark.parametrize("image", ["serve", "train"])
def test_nobody_is_root(image: str) -> None:
    assert f"FROM ranker AS {image}" in DOCKERFILE
    (user,) = re.findall(r"^USER (\d+):(\d+)$", DOCKERFILE, re.MULTILINE)
    assert all(int(part) > 0 for part in user)
    assert "USER" not in stage(image)


def test_the_version_is_the_packages() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f'org.opencontainers.image.version="{version}"' in DOCKERFILE


def test_the_health_check_is_a_program_that_python_reads() -> None:
    found = re.search(r"^HEALTHCHECK .* CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
    assert found
    python, option, program = json.loads(found[1])
    assert (python, option) == ("python", "-c")
    compile(program, "HEALTHCHECK", "exec")


def test_locks_that_are_named_exist() -> None:
    named = set(re.findall(r"(?:SERVE|TRAIN)=(\S+)", DOCKERFILE.replace(".", " ")))
    assert named == {"serve", "slim", "train", "cuda", "cuda-train"}
    assert all((LOCKS / f"{name}.lock").is_file() for name in named)


@pytest.mark.parametrize("lock", ["slim", "serve", "cuda"])
def test_what_serves_does_without_what_only_trains(lock: str) -> None:
    assert not {"torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "scikit-learn", "optuna", "tensorboard"} & pins(lock).keys()


def test_the_slim_image_lacks_pytorch_and_nothing_else() -> None:
    lacking = pins("serve").keys() - pins("slim").keys()
    assert lacking == {"torch", "filelock", "fsspec", "mpmath", "networkx", "sympy"}


def test_what_trains_on_gpus_is_what_trains_on_cpus() -> None:
    cpu, gpu = pins("train"), pins("cuda-train")
    assert cpu.pop("fbgemm-gpu-cpu") == gpu["fbgemm-gpu"]
    assert cpu.items() <= gpu.items()


def test_images_are_built_from_what_exists() -> None:
    """An image whose context lacks a package would be built, and fail when it starts."""
    kept = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert kept == {"LICENSE", "README.md", "pyproject.toml", "pipelines", "ranking", "requirements", "service"}
    assert all((ROOT / name).exists() for name in kept)
