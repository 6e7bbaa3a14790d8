"""Parity of the backends with the reference backend."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ranking.encoding.batch import EncodedBatch
from ranking.encoding.encoder import Encoder
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.frozen.calibration import Calibration, Isotonic, Platt
from ranking.frozen.embedding_rows import RowType, encoded
from ranking.frozen.onnx_export import onnx_body
from ranking.frozen.ranker import FrozenRanker
from ranking.frozen.weights import FrozenModel
from ranking.selection import Reading
from service.backends import onnx as onnx_backend
from service.backends.base import Backend, LRUCache
from service.backends.cuda import CudaBackend
from service.backends.select import select_backend
from tests.conftest import HAS_GPU
from tests.ranking.encoding.test_request_batch import requests
from tests.support.one_model import weights_of, with_weights

DrawRows = Callable[[int, int], pa.Table]
TASKS = ["click", "like", "watch", "rating"]


def products(ranker: FrozenRanker, tasks: list[str]) -> int:
    """Number of matrix products for some tasks; experts and towers have two layers.

    The first layers of all experts are one product with each of four inputs: shared features, items, and their bins.
    Two more copy the numbers to the bins.
    """
    return 4 + 2 + len(ranker.selection.experts_for(tasks)) + len(tasks) * 2


def encode_requests(ranker: FrozenRanker, draw_rows: DrawRows, sizes: list[int]) -> tuple[RequestBatch, pa.Table]:
    """Encoded requests, and the scores of all tasks by the reference backend."""
    inputs, request = requests(ranker, draw_rows, sizes)
    batch = SharedItemSplitter(ranker.encoder).split(inputs, request)
    return batch, select_backend(ranker, "torch").scores(batch, ranker.schema.task_names)


DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
"""Device of the cuda backend. On a CPU it computes the same without a captured graph."""


@pytest.fixture(autouse=True, scope="module")
def _visible_gpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: HAS_GPU)
        yield


def create_onnx_backend(ranker: FrozenRanker) -> Backend:
    return select_backend(ranker, "onnxruntime")


def cuda_backend(ranker: FrozenRanker) -> Backend:
    return CudaBackend(ranker, DEVICE)


OPTIMIZED: dict[str, Callable[[FrozenRanker], Backend]] = {
    "onnxruntime": create_onnx_backend,
    "cuda": cuda_backend,
}


@pytest.fixture(params=OPTIMIZED)
def create_backend(request: pytest.FixtureRequest) -> Callable[[FrozenRanker], Backend]:
    """Factory of a backend other than the reference."""
    return OPTIMIZED[request.param]


@given(
    reading=st.sampled_from(get_args(Reading)),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    tasks=st.permutations(TASKS),
    count=st.integers(1, 4),
)
def test_backends_any_tasks_and_requests_match_reference(
    ranker_of: Callable[[Reading], FrozenRanker],
    draw_rows: DrawRows,
    reading: Reading,
    sizes: list[int],
    tasks: list[str],
    count: int,
) -> None:
    ranker, requested = ranker_of(reading), tasks[:count]
    batch, expected = encode_requests(ranker, draw_rows, sizes)
    for create in OPTIMIZED.values():
        scores = create(ranker).scores(batch, requested)
        assert scores.dtype == np.float32
        np.testing.assert_allclose(scores, expected[:, [TASKS.index(task) for task in requested]], rtol=1e-5, atol=1e-5)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    tasks=st.permutations(TASKS),
    count=st.integers(1, 4),
)
def test_backends_of_several_models_match_reference(
    mean_ranker: FrozenRanker, draw_rows: DrawRows, sizes: list[int], tasks: list[str], count: int
) -> None:
    requested = tasks[:count]
    batch, expected = encode_requests(mean_ranker, draw_rows, sizes)
    for create in OPTIMIZED.values():
        scores = create(mean_ranker).scores(batch, requested)
        np.testing.assert_allclose(scores, expected[:, [TASKS.index(task) for task in requested]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row_type", ["float16", "int8"])
def test_backends_with_compact_embeddings_match_reference(
    hand_ranker: FrozenRanker, draw_rows: DrawRows, row_type: RowType
) -> None:
    compact = with_weights(hand_ranker, encoded(weights_of(hand_ranker), row_type))
    batch, expected = encode_requests(compact, draw_rows, [3, 1, 20])
    _, exact = encode_requests(hand_ranker, draw_rows, [3, 1, 20])
    assert 0 < np.abs(expected - exact).max() < 0.05
    for create in OPTIMIZED.values():
        for tasks in (TASKS, TASKS[2:]):
            scores = create(compact).scores(batch, tasks)
            columns = [TASKS.index(task) for task in tasks]
            np.testing.assert_allclose(scores, expected[:, columns], rtol=1e-5, atol=1e-5)


def test_torch_backend_matches_ranker_score(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    rows = draw_rows(50, 3)
    inputs = hand_ranker.encoder.encode(hand_ranker.complete(rows))
    batch = SharedItemSplitter(hand_ranker.encoder).split(inputs, np.arange(50))
    table = hand_ranker.score(rows)
    scores = select_backend(hand_ranker, "torch").scores(batch, TASKS)
    assert np.array_equal(scores, np.stack([table[task].to_numpy() for task in TASKS], 1))


def test_backend_calibrated_scores_match_reference(
    hand_ranker: FrozenRanker, draw_rows: DrawRows, create_backend: Callable[[FrozenRanker], Backend]
) -> None:
    knots = Isotonic(inputs=(-1.0, 0.5), outputs=(-2.0, -1.0))
    calibration = Calibration({"click": Platt(slope=0.5, shift=-1.0), "like": knots})
    calibrated = replace(hand_ranker, calibration=calibration)
    batch, expected = encode_requests(calibrated, draw_rows, [30])
    scores = create_backend(calibrated).scores(batch, TASKS)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["user_id", "item_id"])
@pytest.mark.parametrize("sizes", [[5], [2, 3]])
def test_backend_one_empty_feature_group_matches_reference(
    hand_ranker: FrozenRanker,
    draw_rows: DrawRows,
    create_backend: Callable[[FrozenRanker], Backend],
    name: str,
    sizes: list[int],
) -> None:
    encoder_of_all = hand_ranker.encoder
    features = tuple(f for f in encoder_of_all.schema.features if f.name == name)
    schema = encoder_of_all.schema.model_copy(update={"features": features})
    encoder = Encoder(schema, {name: encoder_of_all.id_mappings[name]}, {})
    weights = {
        key: value[:4] if key.startswith("expert.") and key.endswith(".0.weight") else value
        for key, value in weights_of(hand_ranker).items()
    }
    narrow = FrozenRanker(schema, encoder, (FrozenModel(hand_ranker.selection, weights),), {}, {})
    inputs, request = requests(hand_ranker, draw_rows, sizes)
    column = [f.name for f in encoder_of_all.schema.categoricals].index(name)
    ids = EncodedBatch(inputs.ids[:, [column]], (), inputs.dense[:, :0], inputs.missing[:, [0]])
    batch = SharedItemSplitter(encoder).split(ids, request)
    expected = select_backend(narrow, "torch").scores(batch, TASKS)
    assert len(np.unique(expected[:, 0])) > 1 or (name, len(sizes)) == ("user_id", 1)
    np.testing.assert_allclose(create_backend(narrow).scores(batch, TASKS), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("owners", [{"item"}, {"user", "context"}, set[str]()], ids=["items", "shared", "none"])
def test_backend_bins_of_some_features_match_reference(
    hand_ranker: FrozenRanker,
    draw_rows: DrawRows,
    create_backend: Callable[[FrozenRanker], Backend],
    owners: set[str],
) -> None:
    encoder, schema = hand_ranker.encoder, hand_ranker.schema
    has_bins = {number.name: number.owner in owners for number in schema.numerics}
    scales = {name: scale if has_bins[name] else replace(scale, edges=()) for name, scale in encoder.scales.items()}
    some = Encoder(schema, encoder.id_mappings, scales)
    keeps = np.array([has_bins[schema.numerics[column].name] for column in encoder.bins.columns])
    assert len(some.bins) == keeps.sum()
    assert keeps.any() == bool(owners)
    weights = dict(weights_of(hand_ranker))
    for name, weight in weights_of(hand_ranker).items():
        if name.startswith("expert.") and name.endswith(".0.weight"):
            weights[name] = weight[np.append(np.full(len(weight) - len(keeps), True), keeps)]
    ranker = with_weights(replace(hand_ranker, encoder=some), weights)
    batch, expected = encode_requests(ranker, draw_rows, [3, 1, 20])
    np.testing.assert_allclose(create_backend(ranker).scores(batch, TASKS), expected, rtol=1e-5, atol=1e-5)


def test_backend_no_candidates_returns_empty_scores(
    hand_ranker: FrozenRanker, draw_rows: DrawRows, create_backend: Callable[[FrozenRanker], Backend]
) -> None:
    batch, _ = encode_requests(hand_ranker, draw_rows, [3])
    assert create_backend(hand_ranker).scores(batch.slice(0, 0), TASKS).shape == (0, 4)


@pytest.mark.parametrize("tasks", [["click"], ["rating", "like"], TASKS])
def test_onnx_backend_runs_only_selected_experts_and_towers(
    hand_ranker: FrozenRanker, draw_rows: DrawRows, tmp_path: Path, tasks: list[str]
) -> None:
    backend = create_onnx_backend(hand_ranker)
    assert isinstance(backend, onnx_backend.OnnxBackend)
    backend._options.enable_profiling, backend._options.profile_file_prefix = True, str(tmp_path / "profile")
    backend._sessions = LRUCache(1)
    batch, expected = encode_requests(hand_ranker, draw_rows, [7])
    scores = backend.scores(batch, tasks)
    np.testing.assert_allclose(scores, expected[:, [TASKS.index(task) for task in tasks]], rtol=1e-5, atol=1e-5)
    session = backend._session(tasks)
    events = json.loads(Path(session.end_profiling()).read_text())
    operators = [event["args"]["op_name"] for event in events if event["name"].endswith("_kernel_time")]
    assert sum(kind.endswith("Gemm") for kind in operators) == products(hand_ranker, tasks)


def test_onnx_body_contains_only_selected_experts(hand_ranker: FrozenRanker) -> None:
    body = onnx.load_from_string(onnx_body(hand_ranker, TASKS))
    onnx.checker.check_model(body)
    assert {o.name for o in body.graph.output} == {f"output.{task}" for task in TASKS}
    gemms = [node for node in body.graph.node if node.op_type == "Gemm"]
    assert len(gemms) == products(hand_ranker, TASKS)
    (bias,) = [weight for weight in body.graph.initializer if weight.name == "experts.bias"]
    widths = [len(weights_of(hand_ranker)[f"expert.{e}.0.bias"]) for e in hand_ranker.selection.experts_used]
    assert bias.dims == [sum(widths)]


def test_onnx_backend_session_cache_is_bounded(
    hand_ranker: FrozenRanker, draw_rows: DrawRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_backend, "CACHED_SESSIONS", 2)
    batch, expected = encode_requests(hand_ranker, draw_rows, [3])
    backend = create_onnx_backend(hand_ranker)
    for tasks in ([task] for task in TASKS * 2):
        scores = backend.scores(batch, tasks)
        np.testing.assert_allclose(scores[:, 0], expected[:, TASKS.index(tasks[0])], rtol=1e-5, atol=1e-5)
    assert isinstance(backend, onnx_backend.OnnxBackend)
    assert len(backend._sessions) == 2


def test_cuda_backend_without_references_is_freed_at_once(hand_ranker: FrozenRanker, draw_rows: DrawRows) -> None:
    """The service freezes the objects of a loaded version, so that the collector would never free a cycle."""
    batch, _ = encode_requests(hand_ranker, draw_rows, [3, 1])
    backend = CudaBackend(hand_ranker, DEVICE)
    backend.scores(batch, TASKS)
    reference = weakref.ref(backend)
    gc.disable()
    try:
        del backend
        assert reference() is None
    finally:
        gc.enable()
