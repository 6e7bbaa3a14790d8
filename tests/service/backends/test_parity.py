"""Every backend gives the scores of the reference, for every subset of tasks and every mix of requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ranking.encoding.batch import EncodedBatch
from ranking.encoding.encoder import Encoder
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.frozen.calibration import Calibration, Isotonic, Platt
from ranking.frozen.onnx_export import onnx_body
from ranking.frozen.ranker import FrozenRanker
from service.backends import onnx as onnx_backend
from service.backends.base import Backend
from service.backends.cuda import CudaBackend
from service.backends.lru_cache import LRUCache
from service.backends.select import select_backend
from tests.ranking.encoding.test_request_batch import requests

DrawRows = Callable[[int, int], pa.Table]
TASKS = ["click", "like", "watch", "rating"]


def with_body(ranker: FrozenRanker) -> FrozenRanker:
    return replace(ranker, body=onnx_body(ranker.graph, ranker.encoder))


def halves_of(ranker: FrozenRanker, draw_rows: DrawRows, sizes: list[int]) -> tuple[RequestBatch, pa.Table]:
    """Halves, and the reference's scores of all tasks for the same candidates."""
    inputs, request = requests(ranker, draw_rows, sizes)
    halves = SharedItemSplitter(ranker.encoder).split(inputs, request)
    return halves, select_backend(ranker, "torch").scores(halves, ranker.schema.task_names)


def on_cpu(ranker: FrozenRanker) -> Backend:
    """The GPU's runtime, which computes the same without one, only does not record it."""
    return CudaBackend(ranker, torch.device("cpu"))


FAST: dict[str, Callable[[FrozenRanker], Backend]] = {
    "onnxruntime": lambda r: select_backend(with_body(r)),
    "cuda": on_cpu,
}


@pytest.fixture(params=FAST)
def fast(request: pytest.FixtureRequest) -> Callable[[FrozenRanker], Backend]:
    """Makes a runtime that is not the reference."""
    return FAST[request.param]


class TestParity:
    @settings(deadline=None, max_examples=40)
    @given(
        sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
        tasks=st.permutations(TASKS),
        count=st.integers(1, 4),
    )
    def test_for_every_subset_of_tasks_and_mix_of_requests(
        self, hand_ranker: FrozenRanker, draw_rows: DrawRows, sizes: list[int], tasks: list[str], count: int
    ) -> None:
        halves, expected = halves_of(hand_ranker, draw_rows, sizes)
        asked = tasks[:count]
        for make in FAST.values():
            found = make(hand_ranker).scores(halves, asked)
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, expected[:, [TASKS.index(task) for task in asked]], rtol=1e-5, atol=1e-5)

    def test_the_reference_scores_as_the_ranker_does(self, hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
        rows = draw_rows(50, 3)
        inputs = hand_ranker.encoder.encode(hand_ranker.complete(rows))
        halves = SharedItemSplitter(hand_ranker.encoder).split(inputs, np.arange(50))
        scored = hand_ranker.score(rows)
        found = select_backend(hand_ranker, "torch").scores(halves, TASKS)
        assert np.array_equal(found, np.stack([scored[task].to_numpy() for task in TASKS], 1))

    def test_of_calibrated_scores(
        self, hand_ranker: FrozenRanker, draw_rows: DrawRows, fast: Callable[[FrozenRanker], Backend]
    ) -> None:
        knots = Isotonic(inputs=(-1.0, 0.5), outputs=(-2.0, -1.0))
        calibration = Calibration({"click": Platt(slope=0.5, shift=-1.0), "like": knots})
        calibrated = replace(hand_ranker, calibration=calibration)
        halves, expected = halves_of(calibrated, draw_rows, [30])
        found = fast(calibrated).scores(halves, TASKS)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("name", ["user_id", "item_id"])
    @pytest.mark.parametrize("sizes", [[5], [2, 3]])
    def test_of_a_ranker_with_one_empty_half(
        self,
        hand_ranker: FrozenRanker,
        draw_rows: DrawRows,
        fast: Callable[[FrozenRanker], Backend],
        name: str,
        sizes: list[int],
    ) -> None:
        whole = hand_ranker.encoder
        features = tuple(f for f in whole.schema.features if f.name == name)
        schema = whole.schema.model_copy(update={"features": features})
        encoder = Encoder(schema, {name: whole.id_mappings[name]}, {})
        weights = {
            key: value[:4] if key.startswith("expert.") and key.endswith(".0.weight") else value
            for key, value in hand_ranker.weights.items()
        }
        narrow = FrozenRanker(schema, encoder, hand_ranker.selection, weights, {}, {})
        inputs, request = requests(hand_ranker, draw_rows, sizes)
        column = [f.name for f in whole.schema.categoricals].index(name)
        ids = EncodedBatch(inputs.ids[:, [column]], (), inputs.dense[:, :0], inputs.missing[:, [0]])
        halves = SharedItemSplitter(encoder).split(ids, request)
        expected = select_backend(narrow, "torch").scores(halves, TASKS)
        assert len(np.unique(expected[:, 0])) > 1 or (name, len(sizes)) == ("user_id", 1)
        np.testing.assert_allclose(fast(narrow).scores(halves, TASKS), expected, rtol=1e-5, atol=1e-5)

    def test_no_candidates(
        self, hand_ranker: FrozenRanker, draw_rows: DrawRows, fast: Callable[[FrozenRanker], Backend]
    ) -> None:
        halves, _ = halves_of(hand_ranker, draw_rows, [3])
        assert fast(hand_ranker).scores(halves.slice(0, 0), TASKS).shape == (0, 4)


class TestWhatRuns:
    @pytest.mark.parametrize("tasks", [["click"], ["rating", "like"], TASKS])
    def test_only_experts_and_towers_of_the_asked_for_tasks(
        self, hand_ranker: FrozenRanker, draw_rows: DrawRows, tmp_path: Path, tasks: list[str]
    ) -> None:
        runtime = select_backend(with_body(hand_ranker))
        assert isinstance(runtime, onnx_backend.OnnxBackend)
        runtime._options.enable_profiling, runtime._options.profile_file_prefix = True, str(tmp_path / "profile")
        runtime._sessions = LRUCache(1)
        halves, expected = halves_of(hand_ranker, draw_rows, [7])
        found = runtime.scores(halves, tasks)
        np.testing.assert_allclose(found, expected[:, [TASKS.index(task) for task in tasks]], rtol=1e-5, atol=1e-5)
        session = runtime._session(tasks)
        events = json.loads(Path(session.end_profiling()).read_text())
        run = [event["args"]["op_name"] for event in events if event["name"].endswith("_kernel_time")]
        experts, layers, towers = len(hand_ranker.selection.experts_for(tasks)), 2, 2
        assert sum(kind.endswith("Gemm") for kind in run) == experts * (layers + 1) + len(tasks) * towers

    def test_the_body_holds_the_chosen_experts_alone(self, hand_ranker: FrozenRanker) -> None:
        body = onnx.load_from_string(onnx_body(hand_ranker.graph, hand_ranker.encoder) or b"")
        assert {o.name for o in body.graph.output} == {f"output.{task}" for task in TASKS}
        gemms = [node for node in body.graph.node if node.op_type == "Gemm"]
        experts, layers, towers = len(hand_ranker.selection.experts_used), 2, 2
        assert len(gemms) == experts * (layers + 1) + len(TASKS) * towers  # the first layer has two halves

    def test_parts_of_the_body_are_not_kept_for_ever(
        self, hand_ranker: FrozenRanker, draw_rows: DrawRows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(onnx_backend, "SESSIONS", 2)
        halves, expected = halves_of(hand_ranker, draw_rows, [3])
        runtime = select_backend(with_body(hand_ranker))
        for tasks in ([task] for task in TASKS * 2):
            found = runtime.scores(halves, tasks)
            np.testing.assert_allclose(found[:, 0], expected[:, TASKS.index(tasks[0])], rtol=1e-5, atol=1e-5)
        assert isinstance(runtime, onnx_backend.OnnxBackend)
        assert len(runtime._sessions._values) == 2
