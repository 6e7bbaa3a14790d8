"""Shared fixtures: a small generated log, a run trained on it, its bundle and a repository."""

from __future__ import annotations

import os

# The models in tests are small: on a busy machine, threads that wait for each other cost twenty times the computation.
# OpenBLAS reads this when NumPy is imported. Its last digits depend on the number of threads, which must therefore be
# the same in all processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gc
import logging
import platform
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from fastapi.dependencies import models as fastapi_models
from filelock import FileLock

from pipelines.config.config import Config, load_config
from pipelines.datasets.synthetic import generate
from pipelines.jobs.freeze import freeze_run
from pipelines.jobs.publish import publish
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from ranking.schema import Schema
from tests.support.s3 import s3_server, set_credentials

platform.processor()  # Starts a program, and caches its answer. MLflow asks for it in tests that may not start one.

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
"""A schema with categorical, numeric and bag features and both kinds of tasks, for tests that create tables."""


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
"""Configuration overrides of each gate variant of a single model."""


pytest_plugins = ["tests.lanes", "tests.evidence"]

gc.disable()  # until all tests are collected


def pytest_collection_finish() -> None:
    """Exclude the million objects of modules and collected tests from garbage collection.

    Traversing them takes a second, and each training collects garbage.
    """
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Exclude what the tests of a file leave, such as modules that a training imports."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # DuckDB reports objects that are left at the end as leaks.


ANY_SPEED = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("repeatable", **ANY_SPEED, max_examples=30, derandomize=True)
hypothesis.settings.register_profile("random", **ANY_SPEED, max_examples=200, print_blob=True)
hypothesis.settings.load_profile("repeatable")


ENDPOINT_CACHES: list[Any] = [value for value in vars(fastapi_models).values() if hasattr(value, "cache_clear")]
"""Caches of FastAPI that keep every application alive, with its models and open files."""


HAS_GPU = torch.cuda.is_available()


@pytest.fixture(autouse=True, scope="session")
def _hidden_gpu() -> Iterator[None]:
    """Hide the GPU from the tests and from the programs that they start: results must not depend on the machine.

    Tests on a GPU use the fixture ``gpu``.
    """
    if HAS_GPU:
        torch.cuda.init()
        torch.cuda.device_count()  # remembers the number before the variable hides the devices
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.setattr(torch.cuda, "is_available", lambda: False)
        yield


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The GPU, on which the test process trains and serves; without one, the test is skipped."""
    if not HAS_GPU:
        pytest.skip("needs an NVIDIA GPU")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return torch.device("cuda", 0)


@pytest.fixture
def schema() -> Schema:
    return Schema.model_validate(RAW_SCHEMA)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Function (name, make) that returns a folder filled by ``make``; read only.

    All test processes share the folders: the first process that needs a folder creates it, the others wait.
    """
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"
    shared.mkdir(exist_ok=True)

    def get_or_create(name: str, make: Callable[[Path], object]) -> Path:
        folder = shared / name
        with FileLock(f"{folder}.lock"):
            if not Path(f"{folder}.done").exists():
                shutil.rmtree(folder, ignore_errors=True)  # left by a failed attempt
                make(folder)
                Path(f"{folder}.done").touch()
        return folder

    return get_or_create


@pytest.fixture(scope="session")
def logs(once: Once) -> Path:
    """Folder of a small generated log with its ranker.toml; read only."""
    return once("logs", lambda folder: generate(folder, ROWS, seed=1))


SMALL = ["model.experts=4", "model.expert_layers=[16]", "model.tower_layers=[8]", "training.batch_size=128"]
"""Overrides for a model that trains on the small log in seconds."""


@pytest.fixture(scope="session")
def config(logs: Path) -> Config:
    """Configuration of the small log, with a model that trains in seconds and tasks that use different experts."""
    return load_config(logs / "ranker.toml", [*SMALL, "model.gate.experts_budget=4"])


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
    """Function that returns the finished run of a gate variant in GATES on the small log; read only."""

    @cache
    def get_run(gate: str) -> RunFolder:
        if gate == "dselect_k all experts":
            return run
        config = load_config(logs / "ranker.toml", [*SMALL, *GATES[gate], "evaluation.baselines=['user_mean']"])
        return RunFolder.open(once(f"run of {gate}", lambda folder: train(config, folder)))

    return get_run


@pytest.fixture(scope="session")
def bundle_of(run_of: Callable[[str], RunFolder], once: Once) -> Callable[[str], Path]:
    """Function that returns the bundle of a gate variant in GATES; read only."""

    def get_bundle(gate: str) -> Path:
        run = run_of(gate)
        return once(f"bundle of {gate}", lambda folder: freeze_run(run.path, folder))

    return get_bundle


@pytest.fixture(scope="session")
def repository(bundle: Path, once: Once) -> Path:
    """Repository with the bundle as version 1 of model "feed"; read only."""
    return once("repository", lambda folder: publish(bundle, folder))


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """Address of a running S3 server, which has the bucket "shop"."""
    with s3_server() as address:
        yield address


@pytest.fixture
def location(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Location in object storage without any objects."""
    set_credentials(monkeypatch, s3)
    return f"s3://shop/{tmp_path.name}/models"


@pytest.fixture(scope="session")
def kuairand_raw() -> Path:
    """Folder of the original KuaiRand files; CI requires them."""
    folder = Path(os.environ.get("RANKER_DATA", "../shared/data")) / "kuairand-pure"
    if not folder.is_dir():
        message = f"{folder} does not exist; set RANKER_DATA to the folder that contains kuairand-pure"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    return folder


@pytest.fixture(autouse=True)
def _seed_torch() -> None:
    torch.default_generator.manual_seed(0)  # the function for all devices stores stack traces, which takes longer


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _no_warm_up() -> Iterator[None]:
    """Let services in the test process serve without a warm-up, which takes five times as long as all else.

    Services in processes of their own warm up; test_loader.py tests the warm-up.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.models.loader.warm_up", lambda *_: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_frozen_models() -> Iterator[None]:
    """Let services in the test process leave garbage collection as it is; test_reconciler.py tests what they freeze."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.models.reconciler._freeze_objects", lambda **_: None)
        yield


@pytest.fixture(autouse=True)
def _restore_process() -> Iterator[None]:
    """Undo what a service or a command that runs in the test process has set for the whole process.

    Another number of threads changes the last digits of a training, and later tests would log every record to stderr.
    """
    hook = threading.excepthook
    loggers = [logging.getLogger(name) for name in (None, "uvicorn", "uvicorn.error", "uvicorn.access")]
    states = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    torch.set_num_threads(1)
    for logger, handlers, level, propagate in states:
        logger.handlers[:], logger.propagate = handlers, propagate
        if logger.level != level:  # setting it resets all loggers
            logger.setLevel(level)
    threading.excepthook = hook
    logging.captureWarnings(False)
    for cached in ENDPOINT_CACHES:
        cached.cache_clear()
