"""Tests of the dense variants of a bundle: they score like the bundle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from benchmarks.serving.dense_model import dense_model, dense_ranker, without_split
from benchmarks.serving.dense_onnx import DenseOnnxBackend, dense_body
from pipelines.bench.requests import Requests
from ranking.artifacts import bundle as bundles
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.encoding.torch_batch import TorchBatch
from ranking.frozen.ranker import FrozenRanker
from ranking.selection import Shape
from service.backends.select import select_backend


@pytest.fixture
def batch(ranker: FrozenRanker, reference: Path) -> RequestBatch:
    return Requests(ranker, reference).encoded(37)


def test_dense_model_scores_like_the_bundle(ranker: FrozenRanker, batch: RequestBatch) -> None:
    model = dense_model(ranker)
    assert len(model.active) == 8
    with torch.inference_mode():
        dense = torch.sigmoid(model(TorchBatch.from_numpy(SharedItemSplitter(ranker.encoder).merge(batch))))
    frozen = select_backend(ranker, "torch").scores(batch, ranker.schema.task_names)
    assert np.abs(dense.numpy() - frozen).max() < 1e-5
    assert frozen.std(0).min() > 1e-4, "the scores of candidates differ"


def test_dense_body_computes_every_expert_and_scores_like_the_bundle(ranker: FrozenRanker, batch: RequestBatch) -> None:
    dense = dense_ranker(ranker)
    body = onnx.load_from_string(dense_body(dense))
    matrices = [w.dims for w in body.graph.initializer if len(w.dims) == 2 and w.dims[0] > 8]
    shape = Shape(500, (256, 256), (64,))
    expected = 8 * shape.expert + 8 * shape.tower
    assert sum(2 * rows * columns for rows, columns in matrices) == expected
    scores = DenseOnnxBackend(dense, 1).scores(batch, ranker.schema.task_names)
    frozen = select_backend(ranker, "torch").scores(batch, ranker.schema.task_names)
    assert np.abs(scores - frozen).max() < 1e-5


def test_without_split_shares_nothing_and_scores_like_the_bundle(ranker: FrozenRanker, batch: RequestBatch) -> None:
    unsplit = without_split(ranker)
    splitter = SharedItemSplitter(unsplit.encoder)
    assert (len(splitter.shared.input_columns), len(splitter.items.input_columns)) == (0, 500)
    unsplit_batch = splitter.split(SharedItemSplitter(ranker.encoder).merge(batch), batch.request_index)
    tasks = ranker.schema.task_names
    scores = select_backend(unsplit, "onnxruntime").scores(unsplit_batch, tasks)
    assert np.abs(scores - select_backend(ranker, "torch").scores(batch, tasks)).max() < 1e-5


@pytest.mark.nightly(short="test_dense_model_scores_like_the_bundle")
def test_dense_variants_of_a_trained_bundle_score_like_it(bundle: Path) -> None:
    trained = bundles.load(bundle)
    batch = Requests(trained, bundle).encoded(20)
    tasks = trained.schema.task_names
    frozen = select_backend(trained, "torch").scores(batch, tasks)
    assert np.abs(DenseOnnxBackend(dense_ranker(trained), 1).scores(batch, tasks) - frozen).max() < 1e-5
    model = dense_model(trained)
    inputs = TorchBatch.from_numpy(SharedItemSplitter(trained.encoder).merge(batch))
    with torch.inference_mode():
        assert (model(inputs) - trained.graph(inputs, tasks)).abs().max() < 1e-4


@pytest.mark.nightly(short="test_dense_model_scores_like_the_bundle")
def test_dense_model_of_a_per_example_gate_raises(bundle_of: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="per-example"):
        dense_model(bundles.load(bundle_of("dselect_k per example")))
