"""Which backend runs a bundle, by what it carries and what the machine has; PyTorch need not be there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pytest
import torch

import ranking
from ranking.errors import BundleError
from ranking.frozen.ranker import FrozenRanker
from service.backends import select
from service.backends.select import select_backend
from tests.service.backends.test_parity import with_body


class TestChoose:
    def test_takes_the_body_if_there_is_one(self, hand_ranker: FrozenRanker) -> None:
        assert select_backend(hand_ranker).backend == "torch"
        assert select_backend(with_body(hand_ranker)).backend == "onnxruntime"
        assert select_backend(with_body(hand_ranker), "torch").backend == "torch"

    def test_says_what_a_bundle_lacks(self, hand_ranker: FrozenRanker) -> None:
        with pytest.raises(BundleError, match=r"'hand' carries no body\.onnx .* serve it with the torch backend"):
            select_backend(hand_ranker, "onnxruntime")

    def test_refuses_a_body_of_anything_else(self, hand_ranker: FrozenRanker) -> None:
        model = onnx.load_from_string(with_body(hand_ranker).body or b"")
        model.graph.node.append(onnx.helper.make_node("Loop", ["items"], ["looped"]))
        with pytest.raises(BundleError, match=r"body\.onnx holds Loop, which no bundle does"):
            select_backend(replace(hand_ranker, body=model.SerializeToString()))

    def test_says_that_there_is_no_gpu(self, hand_ranker: FrozenRanker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(BundleError, match=r"needs an NVIDIA GPU and PyTorch's CUDA build, and finds none here"):
            select_backend(with_body(hand_ranker), "cuda")

    def test_lets_pytorch_use_as_many_threads_as_it_may(self, hand_ranker: FrozenRanker) -> None:
        for threads in (2, 1):
            select_backend(hand_ranker, "torch", threads)
            assert torch.get_num_threads() == threads


class TestAGpu:
    @pytest.fixture
    def device(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The file that a GPU's driver makes; not there yet."""
        monkeypatch.setattr(select, "DEVICES", (str(tmp_path / "nvidia*"), str(tmp_path / "dxg")))
        return tmp_path / "nvidia0"

    @pytest.mark.parametrize("available", [True, False])
    def test_is_there_if_a_driver_is_and_pytorch_finds_it(
        self, device: Path, monkeypatch: pytest.MonkeyPatch, available: bool
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
        device.touch()
        assert select.has_gpu() == available

    def test_is_not_asked_for_where_there_is_no_driver(self, device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert not select.has_gpu()

    def test_is_none_without_pytorch(self, device: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        device.touch()
        monkeypatch.setitem(sys.modules, "torch", None)
        assert not select.has_gpu()


ABSENT = 'sys.modules["torch"] = None  # as where it is not installed'

SCORES = """
import service.app, service.main
from ranking.artifacts import bundle
from service.engine.request_encoder import RequestEncoder
from service.engine.request import FeatureRequest, RawFeatures
from service.backends.select import select_backend

folder, backend, request = sys.argv[1:]
ranker = bundle.read_bundle(folder)
runtime = select_backend(ranker, backend)
owners = {owner: RawFeatures(*said) for owner, said in json.loads(request).items()}
halves = RequestEncoder(ranker)(FeatureRequest(owners, [len(owners["item"].ids)]))
found = {
    "scores": runtime.scores(halves, ranker.schema.task_names).tolist(),
    "backend": runtime.backend,
    "torch": [name for name, module in sys.modules.items() if module and name.partition(".")[0] == "torch"],
}
"""

REFUSALS = """
from ranking import BundleError
from ranking.artifacts import bundle
from service.backends.select import select_backend

found = {}
for name, (folder, backend) in json.loads(sys.argv[1]).items():
    try:
        select_backend(bundle.read_bundle(folder), backend)
    except BundleError as error:
        found[name] = str(error)
"""


def found_by(program: str, *arguments: str, before: str = "") -> Any:
    """What a fresh process finds."""
    lines = ["import json, sys", before, program, "print(json.dumps(found))"]
    command = [sys.executable, "-c", "\n".join(lines), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class TestWithoutPytorch:
    @pytest.mark.parametrize(
        ("before", "backend"), [(ABSENT, "auto"), (ABSENT, "onnxruntime"), ("", "onnxruntime")], ids=str.strip
    )
    def test_onnx_runtime_scores_as_the_library_does_with_it(self, bundle: Path, before: str, backend: str) -> None:
        ids, given = [f"v{i}" for i in range(40)] + ["never-seen"], {"age": 31, "surface": "home", "hour": 9}
        request = {
            "user": [["u3"], {"age": [31]}],
            "context": [None, {"surface": ["home"], "hour": [9]}],
            "item": [ids, {}],
        }
        found = found_by(SCORES, str(bundle), backend, json.dumps(request), before=before)
        assert (found["backend"], found["torch"]) == ("onnxruntime", [])
        columns = {name: [value] * len(ids) for name, value in {"user_id": "u3", **given}.items()}
        scored = ranking.load(bundle).score(pa.table({"item_id": ids, **columns}))
        expected = np.stack([column.to_numpy() for column in scored.columns], 1)
        np.testing.assert_allclose(found["scores"], expected, rtol=0.0, atol=1e-5)

    def test_what_needs_it_says_so_and_what_to_do(
        self, bundle: Path, bundle_of: Callable[[str], Path], tmp_path: Path
    ) -> None:
        routed = bundle_of("dselect_k per example")
        asked = {
            "onnxruntime": (bundle, "onnxruntime"),
            "torch": (bundle, "torch"),
            "cuda": (bundle, "cuda"),
            "per example": (routed, "auto"),
        }
        refused = found_by(
            REFUSALS,
            json.dumps({name: (str(folder), backend) for name, (folder, backend) in asked.items()}),
            before=ABSENT,
        )
        mend = (
            "needs PyTorch, which is not installed here: install it, or serve a bundle with a body.onnx by onnxruntime"
        )
        assert refused == {
            "torch": f"the torch backend {mend}",
            "cuda": f"the cuda backend {mend}",
            "per example": f"{routed} has a per-example gate, which needs PyTorch: install it, or load another bundle",
        }
