"""Tests of the lock files: complete, hashed, and consistent with each other and with pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from requirements.lock import FOLDER, MACHINES, PYTHONS, LockError, read_lock, read_pins
from tests.support.package_index import publish_wheels

ROOT = FOLDER.parent
LOCKS = sorted(path.stem for path in FOLDER.glob("*.lock"))
ALL_LOCKS = sorted(FOLDER.rglob("*.lock"))
"""Lock files, with those of environments of their own."""
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS_OF_LOCK = {
    "slim": {"redis", "report", "tracing"},
    "serve": {"redis", "report", "tracing", "torch"},
    "train": {"postgresql", "redis", "report", "tracing", "torch", "train"},
    "cuda-train": {"postgresql", "redis", "report", "tracing", "torch", "train"},
    "dev": set(PROJECT["optional-dependencies"]) - {"ray", "spark"},  # These have a lock file of their own.
}
"""Extras of the project whose packages a lock file contains."""

OMITTED = {
    ("torchrec", "fbgemm-gpu"),  # fbgemm-gpu-cpu is installed instead.
    ("optuna", "pyyaml"),  # Only Optuna's own command line reads YAML.
    ("botocore", "python-dateutil"),  # botocore asks for a version below 3. The tests of S3 pass with version 4.
}
"""Requirements of packages that the lock files do not satisfy, as (package, requirement)."""


def pins_of(lock: str) -> dict[str, str]:
    """Pinned versions by package, including those of the lock files that it includes."""
    return {name: pin.version for name, pin in read_pins(FOLDER / f"{lock}.lock").items()}


def unsatisfied(requirements: list[str], pins: dict[str, str], extras: set[str]) -> set[str]:
    """Names of requirements that the pins do not satisfy."""
    missing = set()
    for requirement in map(Requirement, requirements):
        applies = any(
            requirement.marker is None or requirement.marker.evaluate({"extra": extra}) for extra in extras | {""}
        )
        name = canonicalize_name(requirement.name)
        if (
            applies
            and name != PROJECT["name"]
            and not requirement.specifier.contains(pins.get(name, "0"), prereleases=True)
        ):
            missing.add(str(name))
    return missing


def test_every_pin_has_hashes_and_no_address() -> None:
    for path in ALL_LOCKS:
        content = read_lock(path)
        assert content.pins, path
        assert not [name for name, pin in content.pins.items() if not pin.hashes], path
    for lock in LOCKS:
        content = read_lock(FOLDER / f"{lock}.lock")
        assert list(content.pins) == sorted(content.pins), lock
        assert "://" not in content.path.read_text(), lock
        assert all((FOLDER / name).is_file() for name in content.includes), lock


def test_locks_of_peers_pin_the_onnxruntime_of_the_service() -> None:
    versions = {path.stem: read_lock(path).pins["onnxruntime"].version for path in (FOLDER / "peers").glob("*.lock")}
    assert versions
    assert set(versions.values()) == {pins_of("slim")["onnxruntime"]}, versions


def test_lock_files_pin_one_version_and_one_set_of_hashes_per_package() -> None:
    pins = [(name, lock, pin) for lock in LOCKS for name, pin in read_lock(FOLDER / f"{lock}.lock").pins.items()]
    for name in {name for name, _, _ in pins}:
        variants = {
            pin.version.removesuffix("+cpu") if name == "torch" else (pin.version, pin.marker, pin.hashes)
            for other, _, pin in pins
            if other == name
        }
        assert len(variants) == 1, name
    cpu, cuda = (read_pins(FOLDER / f"{lock}.lock")["torch"] for lock in ("serve", "cuda"))
    assert not set(cpu.hashes) & set(cuda.hashes), "a CUDA build of torch could be installed as the CPU build"


def test_cpu_build_of_torch_is_pinned_for_all_platforms_and_installed_first() -> None:
    """An index without CPU builds is noticed before any other package is downloaded."""
    (torch,) = read_lock(FOLDER / "torch.lock").pins.values()
    assert torch.version.endswith("+cpu")
    assert len(torch.hashes) == len(PYTHONS) * len(MACHINES)
    assert read_lock(FOLDER / "serve.lock").includes[0] == "torch.lock"


def test_locks_satisfy_the_requirements_of_the_project() -> None:
    missing = {}
    for lock, extras in EXTRAS_OF_LOCK.items():
        requirements = [
            *PROJECT["dependencies"],
            *(line for extra in extras for line in PROJECT["optional-dependencies"][extra]),
        ]
        missing[lock] = unsatisfied(requirements, pins_of(lock), set())
    assert not any(missing.values()), missing


def test_lock_contains_the_requirements_of_its_packages() -> None:
    """Nothing is resolved during the installation, so a forgotten package would be noticed at run time only."""
    pins = pins_of("dev")
    missing = set()
    for distribution in distributions():
        name = canonicalize_name(distribution.name)
        if pins.get(name) == distribution.version:
            missing |= {(name, other) for other in unsatisfied(distribution.requires or [], pins, set())}
    assert missing <= OMITTED, missing - OMITTED


def test_lock_files_are_always_installed_with_hashes() -> None:
    texts = {name: (ROOT / name).read_text().replace("\\\n", "") for name in ("Makefile", "Dockerfile", ".ci/run")}
    commands = [
        line for text in texts.values() for line in text.splitlines() if "install" in line or "$(LOCKED)" in line
    ]
    from_lock = [line for line in commands if ".lock" in line]
    assert len(from_lock) >= 7
    assert all("--require-hashes" in line or "$(LOCKED)" in line for line in from_lock)
    assert re.search(r"^LOCKED := \$\(PIP\) --require-hashes ", texts["Makefile"], re.MULTILINE)
    named = {f"{name}.lock" for line in from_lock for name in re.findall(r"requirements/([\w-]+)\.lock", line)}
    assert named >= {f"{lock}.lock" for lock in LOCKS} - {"slim.lock", "serve.lock", "cuda.lock", "cuda-train.lock"}


def test_audit_names_every_lock_file() -> None:
    """pip-audit ignores the files that a lock file includes. Of PyTorch it only knows the version in cuda.lock."""
    commands = subprocess.run(
        ["make", "--dry-run", "audit"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    services, engines = re.findall(r"^\S+/pip-audit .*?\| ", commands, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"--requirement requirements/([\w-]+)\.lock", services)) == set(LOCKS) - {"torch"}
    assert set(re.findall(r"--requirement requirements/engines/([\w-]+)\.lock", engines)) == {"ray", "spark"}


def test_serving_locks_exclude_training_packages() -> None:
    training = {"torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "scikit-learn", "optuna", "tensorboard"}
    assert not [(lock, name) for lock in ("slim", "serve", "cuda") for name in training & pins_of(lock).keys()]


def test_slim_lock_omits_only_pytorch_and_its_dependencies() -> None:
    omitted = {"torch", "filelock", "fsspec", "mpmath", "networkx", "sympy"}
    assert pins_of("serve").keys() - pins_of("slim").keys() == omitted
    assert pins_of("cuda").keys() >= omitted


def test_cuda_train_lock_pins_same_versions_as_train_lock() -> None:
    cpu, gpu = pins_of("train"), pins_of("cuda-train")
    assert cpu.pop("fbgemm-gpu-cpu") == gpu["fbgemm-gpu"]
    assert cpu.pop("torch") == f"{gpu['torch']}+cpu"
    assert cpu.items() <= gpu.items()


@pytest.mark.parametrize(
    "line",
    ["idna>=3.20", "idna", "idna==3.20 --hash=md5:00", "https://example.com/idna.whl", "idna==3.20 --hash=sha256:12"],
)
def test_read_lock_inexact_pin_raises(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.lock").write_text(f"{line}\n")
    with pytest.raises(LockError, match=r"a\.lock: .* is not an exact pin"):
        read_lock(tmp_path / "a.lock")


def test_read_pins_of_conflicting_files_raises(tmp_path: Path) -> None:
    (tmp_path / "a.lock").write_text("idna==3.20\n")
    (tmp_path / "b.lock").write_text("-r a.lock\nidna==3.21\n")
    with pytest.raises(LockError, match=r"b\.lock: two pins of idna differ"):
        read_pins(tmp_path / "b.lock")


class Index:
    """A package index in a folder, and a folder of lock files."""

    def __init__(self, folder: Path) -> None:
        self.index, self.locks = folder / "simple", folder / "locks"
        self.locks.mkdir(parents=True)

    def add(self, name: str, version: str, *tags: str) -> dict[str, str]:
        """Publish a package with one wheel per tag. Returns the SHA-256 digests by tag."""
        return publish_wheels(self.index, name, version, *tags)

    def lock(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``make lock`` on the folder of lock files."""
        command = [sys.executable, "-m", "requirements.lock", "--folder", str(self.locks), *arguments]
        environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "UV_DEFAULT_INDEX": self.index.as_uri()}
        environment |= {"HOME": str(self.locks), "UV_CACHE_DIR": str(self.locks / "cache")}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path)


def test_lock_adds_the_hashes_of_supported_wheels_only(index: Index) -> None:
    supported = [
        "cp311-cp311-manylinux_2_28_x86_64",
        "cp312-cp312-manylinux2014_aarch64",
        "cp39-abi3-manylinux_2_17_x86_64",
    ]
    others = ["cp310-cp310-manylinux_2_28_x86_64", "cp314-cp314-manylinux_2_28_x86_64", "cp311-cp311-win_amd64"]
    others += ["cp311-cp311-musllinux_1_2_x86_64", "cp313-cp313t-manylinux_2_28_x86_64"]
    digests = index.add("alpha", "1.0", *supported, *others)
    pure = index.add("beta", "2.0", "py3-none-any")
    (index.locks / "a.lock").write_text('# Comment.\nbeta==2.0; python_version < "3.12"\nalpha==1.0\n')
    result = index.lock()
    assert result.returncode == 0, result.stderr
    hashes = [f"    --hash=sha256:{digest}" for digest in sorted(digests[tag] for tag in supported)]
    expected = ["# Comment.", " \\\n".join(["alpha==1.0", *hashes])]
    expected.append(f'beta==2.0; python_version < "3.12" \\\n    --hash=sha256:{pure["py3-none-any"]}')
    assert (index.locks / "a.lock").read_text() == "\n".join(expected) + "\n"


def test_lock_changes_a_pin_in_every_file_and_keeps_the_hashes_of_others(index: Index) -> None:
    index.add("alpha", "1.0", "py3-none-any")
    new = index.add("alpha", "1.1", "py3-none-any")["py3-none-any"]
    kept = "0" * 64
    (index.locks / "a.lock").write_text(
        f"alpha==1.0 \\\n    --hash=sha256:{kept}\nbeta==1.0 \\\n    --hash=sha256:{kept}\n"
    )
    (index.locks / "b.lock").write_text(f"-r a.lock\nalpha==1.0 \\\n    --hash=sha256:{kept}\n")
    result = index.lock("Alpha==1.1")
    assert result.returncode == 0, result.stderr
    pins = read_pins(index.locks / "b.lock")
    assert (pins["alpha"].version, pins["alpha"].hashes) == ("1.1", (new,))
    assert pins["beta"].hashes == (kept,)


def test_lock_keeps_the_local_version_of_a_cpu_build_and_takes_it_from_its_index(index: Index, tmp_path: Path) -> None:
    cuda = index.add("torch", "2.1", "cp311-cp311-manylinux_2_28_x86_64")
    cpu_index = Index(tmp_path / "cpu")
    cpu = cpu_index.add("torch", "2.1+cpu", "cp311-cp311-manylinux_2_28_x86_64")
    (index.locks / "torch.lock").write_text("torch==2.0+cpu\n")
    (index.locks / "cuda.lock").write_text("torch==2.0\n")
    result = index.lock("torch==2.1", "--index", cpu_index.index.as_uri())
    assert result.returncode == 0, result.stderr
    for lock, version, hashes in (("torch", "2.1+cpu", cpu), ("cuda", "2.1", cuda)):
        pin = read_pins(index.locks / f"{lock}.lock")["torch"]
        assert (pin.version, pin.hashes) == (version, tuple(hashes.values()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gamma==1.0"], "no lock file contains gamma: add the line 'gamma==1.0' to one of them first"),
        (["alpha>1"], "'alpha>1' is not an exact pin"),
        (["alpha==9.0"], "alpha==9.0"),
        (["beta==1.0.0"], "write versions as the index does: it has no beta==1.0.0 by this name"),
        (["alpha==1.0"], "alpha==1.0: the index has no wheel for x86_64 or aarch64 and no source archive"),
    ],
)
def test_lock_failure_names_the_pin_and_changes_nothing(index: Index, arguments: list[str], message: str) -> None:
    index.add("alpha", "1.0", "cp311-cp311-win_amd64")
    index.add("beta", "1.0", "py3-none-any")
    text = "".join(f"{name}==0.9 \\\n    --hash=sha256:{'0' * 64}\n" for name in ("alpha", "beta"))
    (index.locks / "a.lock").write_text(text)
    result = index.lock(*arguments)
    assert result.returncode == 1
    assert message in result.stderr
    assert (index.locks / "a.lock").read_text() == text
