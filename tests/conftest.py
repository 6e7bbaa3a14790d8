"""Fixtures that several rooms share: a small generated log, a run trained on it, its bundle, a repository."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from pipelines.config.config import Config, load_config
from pipelines.datasets.synthetic import generate
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.publish import publish
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from ranking.schema import Schema

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""Of the processes that tests start, as ``_one_thread`` has it for their own.

Models here are small, and threads that wait for each other on a busy machine cost twenty times the work.
"""

Once = Callable[[str, Callable[[Path], object]], Path]

ROWS = 6_000

RAW_SCHEMA: dict[str, Any] = {
    "name": "shop",
    "features": [
        {"name": "user_id", "kind": "categorical", "owner": "user"},
        {"name": "item_id", "kind": "categorical", "owner": "item"},
        {"name": "age", "kind": "numeric", "owner": "user"},
        {"name": "price", "kind": "numeric", "owner": "item", "transform": "log1p"},
        {"name": "tags", "kind": "bag", "owner": "item", "dim": 4},
        {"name": "tab", "kind": "categorical", "owner": "context", "hash_buckets": 7},
    ],
    "tasks": [
        {"name": "click", "kind": "binary", "label": "is_click"},
        {"name": "watch", "kind": "regression", "label": "seconds", "transform": "log1p"},
    ],
}
"""A schema with every kind of feature and task, for tests that make their own tables."""


GATES: dict[str, list[str]] = {
    "dselect_k": [],
    "dselect_k per example": ["model.gate.per_example=true"],
    "dselect_k all experts": ["model.gate.experts_budget=4"],
    "dselect_k per example budget": ["model.gate.per_example=true", "model.gate.experts_budget=2"],
    "softmax_selectors": ["model.gate.kind=softmax_selectors"],
    "top_k": ["model.gate.kind=top_k"],
    "top_k per example": ["model.gate.kind=top_k", "model.gate.per_example=true"],
    "softmax": ["model.gate.kind=softmax"],
    "softmax per example": ["model.gate.kind=softmax", "model.gate.per_example=true"],
    "gumbel_softmax": ["model.gate.kind=gumbel_softmax"],
    "attentive": ["model.gate.kind=attentive"],
    "shared_bottom": ["model.gate.kind=shared_bottom"],
}
"""Every gate that one model can have, by what changes in the configuration."""


@pytest.fixture
def schema() -> Schema:
    return Schema.model_validate(RAW_SCHEMA)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """(name, make) → a folder that ``make`` filled, for all processes that run tests; read only.

    The first that needs it makes it; the others wait, and take what is there.
    """
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"
    shared.mkdir(exist_ok=True)

    def made(name: str, make: Callable[[Path], object]) -> Path:
        folder = shared / name
        with FileLock(f"{folder}.lock"):
            if not Path(f"{folder}.done").exists():
                shutil.rmtree(folder, ignore_errors=True)  # of one that failed
                make(folder)
                Path(f"{folder}.done").touch()
        return folder

    return made


@pytest.fixture(scope="session")
def logs(once: Once) -> Path:
    """Folder of a small generated log with its ranker.toml; read only."""
    return once("logs", lambda folder: generate(folder, ROWS, seed=1))


SMALL = ["model.experts=4", "model.expert_layers=[16]", "model.tower_layers=[8]", "training.batch_size=128"]
"""Settings of a model that trains on the small log in seconds."""


@pytest.fixture(scope="session")
def config(logs: Path) -> Config:
    """Configuration of the small log, with a model that trains in seconds."""
    return load_config(logs / "ranker.toml", [*SMALL, "model.gate.experts_budget=4"])  # tasks use different experts


@pytest.fixture(scope="session")
def run(config: Config, once: Once) -> RunFolder:
    """A finished run on the small log; read only."""
    return RunFolder.open(once("run", lambda folder: train(config, folder)))


@pytest.fixture(scope="session")
def bundle(run: RunFolder, once: Once) -> Path:
    """The run's bundle; read only."""
    return once("bundle", lambda folder: freeze_run(run.path, folder))


@pytest.fixture(scope="session")
def run_of(logs: Path, run: RunFolder, once: Once) -> Callable[[str], RunFolder]:
    """Name of a gate in GATES → a finished run with it on the small log; read only."""

    @cache
    def trained(gate: str) -> RunFolder:
        if gate == "dselect_k all experts":
            return run
        config = load_config(logs / "ranker.toml", SMALL + GATES[gate])
        return RunFolder.open(once(f"run of {gate}", lambda folder: train(config, folder)))

    return trained


@pytest.fixture(scope="session")
def bundle_of(run_of: Callable[[str], RunFolder], once: Once) -> Callable[[str], Path]:
    """Name of a gate in GATES → the bundle of its run; read only."""

    def frozen(gate: str) -> Path:
        run = run_of(gate)
        return once(f"bundle of {gate}", lambda folder: freeze_run(run.path, folder))

    return frozen


@pytest.fixture(scope="session")
def repository(bundle: Path, once: Once) -> Path:
    """A repository with the bundle as version 1 of model "feed"; read only."""
    return once("repository", lambda folder: publish(bundle, folder))


@pytest.fixture(scope="session")
def kuairand_raw() -> Path:
    """The real log's original files; in CI they must be there."""
    folder = Path(os.environ.get("RANKER_DATA", "../shared/data")) / "kuairand-pure"
    if not folder.is_dir():
        message = f"{folder} is not there; set RANKER_DATA to the folder that holds kuairand-pure"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    return folder


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)
