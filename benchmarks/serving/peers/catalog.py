"""The peers of the comparison, and the settings to search for each of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.serving.peers.forms import LIST, PLAIN, TENSOR, Form
from pipelines.bench.server_process import ServerProcess

Settings = dict[str, Any]
ENVIRONMENTS = Path(sys.prefix) / "peers"
"""Folder of the environments of peers."""


@dataclass(frozen=True)
class Peer:
    """One way to serve a bundle.

    Attributes:
        name: name in results and targets.
        module: module of this folder that serves it.
        settings: settings to search, of the form that the module documents; the first of them is the simplest.
        package: package that it needs; None if the project's own packages suffice.
        environment: name of an environment of its own, because the package conflicts with those of the project; None
            for the environment of the project.
        form: form of its requests and responses.
    """

    name: str
    module: str
    settings: Sequence[Settings]
    package: str | None = None
    environment: str | None = None
    form: Form = PLAIN

    @property
    def lock(self) -> str:
        """Lock file that contains its package."""
        return "requirements/bench.lock" if self.environment is None else f"requirements/peers/{self.environment}.lock"

    @cached_property
    def version(self) -> str | None:
        """Version of its package; None if it needs none, or if the package is not installed."""
        if self.package is None or not Path(self._python).exists():
            return None
        program = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
        result = subprocess.run(
            [self._python, "-c", program, self.package], capture_output=True, text=True, check=False
        )
        return result.stdout.strip() or None

    @property
    def is_installed(self) -> bool:
        """Whether its package is installed."""
        return self.package is None or self.version is not None

    @property
    def _python(self) -> str:
        return sys.executable if self.environment is None else f"{ENVIRONMENTS}/{self.environment}/bin/python"

    def server(self, bundle: Path, matrices: Path, settings: Settings, cores: Sequence[int]) -> ServerProcess:
        """Create the process of its server."""
        module = f"benchmarks.serving.peers.{self.module}"
        command = [self._python, "-m", module, str(bundle), str(matrices), json.dumps(settings), "{port}"]
        return ServerProcess(command, self.form.ready_path, cores)


UNBATCHED: Sequence[Settings] = [
    {"threads": threads, "freeze": freeze} for threads in (False, True) for freeze in (False, True)
]
"""Settings of an application without batches."""

BATCHED: Sequence[Settings] = [
    {"size": size, "wait": wait} for size, wait in ((1, 0.0), (8, 0.001), (32, 0.001), (32, 0.005))
]
"""Settings of a framework that forms batches: maximum number of requests, and maximum wait in seconds."""

HAND_WRITTEN, LITSERVE = "FastAPI + ONNX Runtime, own look-up", "LitServe, batches"
"""Peers that have targets."""

PEERS = (
    Peer(HAND_WRITTEN, "hand_written", UNBATCHED),
    Peer("FastAPI, our look-up, inline", "inline", UNBATCHED),
    Peer(
        "FastAPI, our look-up, micro-batches",
        "micro_batches",
        [
            {"size": 8, "wait": 0.0, "threads": False},
            {"size": 32, "wait": 0.0, "threads": False},
            {"size": 32, "wait": 0.002, "threads": False},
            {"size": 32, "wait": 0.0, "threads": True},
        ],
    ),
    Peer(
        LITSERVE,
        "litserve_app",
        [
            {"size": 8, "wait": 0.0, "zeromq": True},
            {"size": 32, "wait": 0.0, "zeromq": True},
            {"size": 32, "wait": 0.002, "zeromq": True},
            {"size": 64, "wait": 0.005, "zeromq": False},
        ],
        "litserve",
    ),
    Peer(
        "LitServe, no batches",
        "litserve_app",
        [{"size": 1, "wait": 0.0, "zeromq": zeromq} for zeromq in (False, True)],
        "litserve",
    ),
    Peer("MLServer", "mlserver_app", BATCHED, "mlserver", "mlserver", TENSOR),
    Peer("Triton, Python model", "pytriton_app", BATCHED, "nvidia-pytriton", "pytriton", TENSOR),
    Peer("BentoML", "bentoml_app", BATCHED, "bentoml", "bentoml", LIST),
    Peer("Ray Serve", "ray_app", BATCHED, "ray", "ray"),
)
"""All peers, in the order of the tables. Each has at most four settings."""
