"""Selection of the backend, with and without a GPU and PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import ranking
from ranking.errors import BundleError
from ranking.frozen.ranker import FrozenRanker
from ranking.settings.gate import DSelectKConfig
from service.backends import select
from service.backends.select import BackendName, select_backend


def test_select_backend_auto_prefers_onnxruntime(hand_ranker: FrozenRanker) -> None:
    assert select_backend(hand_ranker).name == "onnxruntime"
    assert select_backend(hand_ranker, "torch").name == "torch"


@pytest.mark.parametrize("backend", ["onnxruntime", "cuda"])
def test_select_backend_per_example_gate_needs_torch(hand_ranker: FrozenRanker, backend: BackendName) -> None:
    model = replace(hand_ranker.models[0], gate=DSelectKConfig(per_example=True))
    routed = replace(hand_ranker, models=(hand_ranker.models[0], model))
    assert select_backend(routed).name == "torch"
    with pytest.raises(BundleError, match=f"'hand' has a per-example gate, which the {backend} backend cannot run: "):
        select_backend(routed, backend)


def test_select_backend_cuda_without_gpu_raises(hand_ranker: FrozenRanker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        BundleError, match=r"needs an NVIDIA GPU and PyTorch's CUDA build, but PyTorch finds no GPU here"
    ):
        select_backend(hand_ranker, "cuda")


def test_select_backend_torch_sets_thread_count(hand_ranker: FrozenRanker) -> None:
    for threads in (2, 1):
        select_backend(hand_ranker, "torch", threads)
        assert torch.get_num_threads() == threads


@pytest.fixture
def driver_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of the device file of a GPU driver, which does not exist yet."""
    monkeypatch.setattr(select, "GPU_DEVICE_PATTERNS", (str(tmp_path / "nvidia*"), str(tmp_path / "dxg")))
    return tmp_path / "nvidia0"


@pytest.mark.parametrize("available", [True, False])
def test_has_gpu_with_driver_asks_pytorch(driver_file: Path, monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    driver_file.touch()
    assert select.has_gpu() == available


def test_has_gpu_without_driver_is_false(driver_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not select.has_gpu()


def test_has_gpu_without_pytorch_is_false(driver_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver_file.touch()
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not select.has_gpu()


WITHOUT_TORCH = 'sys.modules["torch"] = None  # import fails as if PyTorch were not installed'

SCORES = """
import service.app, service.main
from ranking.artifacts import bundle
from service.engine.request_encoder import RequestEncoder
from service.engine.request import FeatureRequest, RawFeatures
from service.backends.select import select_backend

folder, backend, request = sys.argv[1:]
ranker = bundle.read_bundle(folder)
backend = select_backend(ranker, backend)
owners = {owner: RawFeatures(*features) for owner, features in json.loads(request).items()}
batch = RequestEncoder(ranker)(FeatureRequest(owners, [len(owners["item"].ids)]))
result = {
    "scores": backend.scores(batch, ranker.schema.task_names).tolist(),
    "backend": backend.name,
    "torch": [name for name, module in sys.modules.items() if module and name.partition(".")[0] == "torch"],
}
"""

SELECT_EACH = """
from ranking import BundleError
from ranking.artifacts import bundle
from service.backends.select import select_backend

result = {}
for name, (folder, backend) in json.loads(sys.argv[1]).items():
    try:
        select_backend(bundle.read_bundle(folder), backend)
    except BundleError as error:
        result[name] = str(error)
"""


def run_program(program: str, *arguments: str) -> Any:
    """Run a program in a new process without PyTorch and return its ``result``."""
    lines = ["import json, sys", WITHOUT_TORCH, program, "print(json.dumps(result))"]
    command = [sys.executable, "-c", "\n".join(lines), *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.nightly(
    short="tests/service/test_operations.py::test_serving_imports_no_library_for_training_nor_pipelines"
)
def test_onnx_backend_without_pytorch_matches_library(bundle: Path) -> None:
    ids, features = [f"v{i}" for i in range(40)] + ["never-seen"], {"age": 31, "surface": "home", "hour": 9}
    request = {
        "user": [["u3"], {"age": [31]}],
        "context": [[None], {"surface": ["home"], "hour": [9]}],
        "item": [ids, {}],
    }
    result = run_program(SCORES, str(bundle), "auto", json.dumps(request))
    assert (result["backend"], result["torch"]) == ("onnxruntime", [])
    columns = {name: [value] * len(ids) for name, value in {"user_id": "u3", **features}.items()}
    table = ranking.load(bundle).score(pa.table({"item_id": ids, **columns}))
    expected = np.stack([column.to_numpy() for column in table.drop(["score"]).columns], 1)
    np.testing.assert_allclose(result["scores"], expected, rtol=0.0, atol=1e-5)


def test_select_backend_without_pytorch_names_the_fix(
    bundle: Path, bundle_of: Callable[[str], Path], tmp_path: Path
) -> None:
    routed = bundle_of("dselect_k per example")
    requested = {
        "onnxruntime": (bundle, "onnxruntime"),
        "torch": (bundle, "torch"),
        "cuda": (bundle, "cuda"),
        "per example": (routed, "auto"),
    }
    errors = run_program(
        SELECT_EACH,
        json.dumps({name: (str(folder), backend) for name, (folder, backend) in requested.items()}),
    )
    fix = "needs PyTorch, which is not installed here: install it, or serve with onnxruntime"
    assert errors == {
        "torch": f"the torch backend {fix}",
        "cuda": f"the cuda backend {fix}",
        "per example": f"{routed} has a per-example gate, which needs PyTorch: install it, or load another bundle",
    }
