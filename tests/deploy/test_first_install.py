"""The installation from lock files with an index that, like the public one, has no CPU build of PyTorch."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from requirements.lock import FOLDER
from tests.support.package_index import publish_wheels, write_wheel

ROOT = FOLDER.parent
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
BUILD_BACKEND = """
import shutil

def build_editable(folder, *_):
    return shutil.copy("dselect_ranker-1.0-py3-none-any.whl", folder).rpartition("/")[2]
"""


class Machine:
    """A checkout with small lock files, and the package indexes ``public`` and ``cpu`` on a loopback port.

    Attributes:
        requests: paths that pip requested from the indexes.
    """

    def __init__(self, folder: Path) -> None:
        self.indexes, self.checkout = folder / "indexes", folder / "checkout"
        self.requests: list[str] = []
        requests = self.requests

        class Handler(SimpleHTTPRequestHandler):
            def log_request(self, *_: Any) -> None:
                requests.append(self.path)

            def log_error(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(self.indexes)))
        self.address = f"http://127.0.0.1:{self.server.server_port}"

        (self.checkout / "requirements").mkdir(parents=True)
        shutil.copy(ROOT / "Makefile", self.checkout)
        (self.checkout / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        )
        (self.checkout / "backend.py").write_text(BUILD_BACKEND)
        write_wheel(self.checkout, "dselect_ranker", "1.0")
        # pip without the metadata of a package, so that the environment is created in a fraction of a second.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], cwd=self.checkout, check=True)
        self.packages = Path(sysconfig.get_path("purelib", vars={"base": str(self.checkout / ".venv")}))
        (self.packages / "pip").symlink_to(Path(find_spec("pip").origin).parent)

    def lock(self, torch: str) -> None:
        """Write the lock files, with a hash for each package."""
        package = publish_wheels(self.indexes / "public", "alpha", "1.0", "py3-none-any")["py3-none-any"]
        for name, text in {
            "torch": f"torch==2.13.0+cpu --hash=sha256:{torch}\n",
            "slim": f"alpha==1.0 --hash=sha256:{package}\n",
            "serve": "-r torch.lock\n-r slim.lock\n",
            "train": "-r serve.lock\n",
        }.items():
            (self.checkout / "requirements" / f"{name}.lock").write_text(text)

    def install(self) -> subprocess.CompletedProcess[str]:
        """Run ``make .venv/train`` without the settings of this machine."""
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.checkout), "PIP_CONFIG_FILE": "/dev/null"}
        environment |= {"PIP_INDEX_URL": f"{self.address}/public", "TORCH_INDEX": f"{self.address}/cpu"}
        return subprocess.run(
            ["make", ".venv/train"], cwd=self.checkout, env=environment, capture_output=True, text=True, check=False
        )


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    with machine.server:
        threading.Thread(target=machine.server.serve_forever).start()
        yield machine
        machine.server.shutdown()


def test_make_takes_pytorch_from_its_own_index_if_the_index_has_no_cpu_build(machine: Machine) -> None:
    """Protects the first run on a machine that only has the public index; needs no settings (4 s)."""
    publish_wheels(machine.indexes / "public", "torch", "2.13.0", "py3-none-any")
    cpu = publish_wheels(machine.indexes / "cpu", "torch", "2.13.0+cpu", "py3-none-any")
    machine.lock(torch=cpu["py3-none-any"])
    result = machine.install()
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    lines = [line for line in result.stdout.splitlines() if "index" in line and "pip install" not in line]
    assert lines == [f"pip's index has no CPU build of PyTorch: taking it from {machine.address}/cpu"]
    installed = {path.name.removesuffix(".dist-info") for path in machine.packages.glob("*.dist-info")}
    assert installed == {"torch-2.13.0+cpu", "alpha-1.0", "dselect_ranker-1.0"}
    assert machine.requests[0].startswith("/public/torch"), "a missing CPU build is noticed late"
    assert {path for path in machine.requests if path.startswith("/cpu/")} == {
        "/cpu/torch/",
        "/cpu/torch/torch-2.13.0%2Bcpu-py3-none-any.whl",
    }


def test_make_does_not_try_pytorchs_index_after_another_failure(machine: Machine) -> None:
    cpu = publish_wheels(machine.indexes / "cpu", "torch", "2.13.0+cpu", "py3-none-any")
    shutil.copytree(machine.indexes / "cpu", machine.indexes / "public")
    machine.lock(torch=cpu["py3-none-any"][::-1])
    result = machine.install()
    assert result.returncode
    assert "DO NOT MATCH THE HASHES" in result.stderr
    assert not [path for path in machine.requests if path.startswith("/cpu/")]


def test_image_takes_pytorch_from_its_own_index_if_the_index_has_no_cpu_build(tmp_path: Path) -> None:
    """Runs the command of the Dockerfile with a program ``pip`` that only finds packages in an additional index."""
    dockerfile = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    (index,) = re.findall(r"^ARG TORCH_INDEX=(\S+)$", dockerfile, re.MULTILINE)
    (command,) = re.findall(r"^RUN (.*\$\{SERVE\}\.lock.*)$", dockerfile, re.MULTILINE)
    calls = tmp_path / "calls"
    (tmp_path / "pip").write_text(f'#!/bin/sh\necho "$*" >> {calls}\ncase "$*" in *extra-index*) ;; *) exit 1;; esac\n')
    (tmp_path / "pip").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SERVE": "serve", "TORCH_INDEX": index}
    subprocess.run(["/bin/sh", "-c", command], env=environment, check=True)
    first, second = calls.read_text().splitlines()
    assert first.endswith("--require-hashes -r /src/requirements/serve.lock")
    assert second == f"{first} --extra-index-url {TORCH_INDEX}"


@pytest.mark.parametrize("name", ["Makefile", "Dockerfile", "README.md"])
def test_installation_names_pytorchs_index_only(name: str) -> None:
    text = (ROOT / name).read_text()
    assert set(re.findall(r"https://\S*(?:whl|simple|pypi)[\w/.-]*", text)) == {TORCH_INDEX}
