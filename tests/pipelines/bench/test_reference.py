"""The reference model is what the aims are about, and its dense twins score as it does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from pipelines.bench.dense import choose, dense_model, dense_ranker, unsplit
from pipelines.bench.dense_body import DenseRuntime, dense_body

from pipelines.bench.requests import Requests
from ranking.encoding.request_batch import RequestBatch, SharedItemSplitter
from ranking.encoding.torch_batch import TorchBatch
from ranking.frozen.ranker import FrozenRanker
from ranking.gates import DSelectK, Softmax
from ranking.selection import Selection, Shape, flops
from service.backends.select import select_backend as runtime


@pytest.fixture
def halves(ranker: FrozenRanker, reference: Path) -> RequestBatch:
    return Requests(ranker, reference).halves(37)


def test_shape_and_choice(ranker: FrozenRanker) -> None:
    schema = ranker.schema
    assert (len(schema.categoricals), len(schema.numerics)) == (30, 20)
    sides = SharedItemSplitter(ranker.encoder)
    assert (len(sides.shared.input_columns), len(sides.items.input_columns)) == (250, 250)
    assert [tuple(weight.shape) for weight, _ in ranker.graph.experts[1]] == [(500, 256), (256, 256)]
    assert [tuple(weight.shape) for weight, _ in ranker.graph.towers["task_7"]] == [(256, 64), (64, 1)]
    assert len(ranker.selection.experts_used) == 4
    assert {len(chosen) for chosen in ranker.selection.tasks.values()} == {2}
    assert (ranker.selection.num_experts, len(ranker.selection.tasks)) == (8, 8)


def test_pruning_saves_nearly_half(ranker: FrozenRanker) -> None:
    costs = flops(ranker.selection, Shape(500, (256, 256), (64,)))
    assert ranker.details["flops"] == costs
    assert costs["dense"] / costs["frozen"] == pytest.approx(1.864, abs=0.001)


def test_tables_have_the_rows_asked_for(ranker: FrozenRanker) -> None:
    assert {owner: len(table) for owner, table in ranker.encoded.items()} == {"user": 40, "item": 300}


def test_the_dense_model_scores_as_the_bundle_does(ranker: FrozenRanker, halves: RequestBatch) -> None:
    model = dense_model(ranker)
    assert len(model.active) == 8
    with torch.inference_mode():
        dense = torch.sigmoid(model(TorchBatch.from_numpy(SharedItemSplitter(ranker.encoder).merge(halves))))
    frozen = runtime(ranker, "torch").scores(halves, ranker.schema.task_names)
    assert np.abs(dense.numpy() - frozen).max() < 1e-5
    assert frozen.std(0).min() > 1e-4  # not all alike


def test_the_dense_body_evaluates_every_expert_and_scores_the_same(ranker: FrozenRanker, halves: RequestBatch) -> None:
    dense = dense_ranker(ranker)
    body = onnx.load_from_string(dense_body(dense.graph, dense.encoder))
    weights = [w.dims for w in body.graph.initializer if len(w.dims) == 2 and w.dims[0] > 8]
    shape = Shape(500, (256, 256), (64,))
    expected = 8 * shape.expert + 8 * shape.tower
    assert sum(2 * rows * columns for rows, columns in weights) == expected
    scores = DenseRuntime(dense, 1).scores(halves, ranker.schema.task_names)
    frozen = runtime(ranker, "torch").scores(halves, ranker.schema.task_names)
    assert np.abs(scores - frozen).max() < 1e-5


def test_without_a_split_nothing_is_shared_and_scores_are_the_same(ranker: FrozenRanker, halves: RequestBatch) -> None:
    whole = unsplit(ranker)
    sides = SharedItemSplitter(whole.encoder)
    assert (len(sides.shared.input_columns), len(sides.items.input_columns)) == (0, 500)
    again = sides.split(SharedItemSplitter(ranker.encoder).merge(halves), halves.request_index)
    tasks = ranker.schema.task_names
    one, other = runtime(whole, "onnxruntime").scores(again, tasks), runtime(ranker, "torch").scores(halves, tasks)
    assert np.abs(one - other).max() < 1e-5


def test_dense_twins_of_a_trained_bundle(bundle: Path) -> None:
    from ranking.artifacts import bundle as bundles

    trained = bundles.load(bundle)
    halves = Requests(trained, bundle).halves(20)
    tasks = trained.schema.task_names
    frozen = runtime(trained, "torch").scores(halves, tasks)
    assert np.abs(DenseRuntime(dense_ranker(trained), 1).scores(halves, tasks) - frozen).max() < 1e-5
    model = dense_model(trained)
    inputs = TorchBatch.from_numpy(SharedItemSplitter(trained.encoder).merge(halves))
    with torch.inference_mode():
        assert (model(inputs) - trained.graph(inputs, tasks)).abs().max() < 1e-4


def test_a_per_example_gate_has_no_dense_twin(bundle_of: Callable[[str], Path]) -> None:
    from ranking.artifacts import bundle as bundles

    with pytest.raises(ValueError, match="per-example"):
        dense_model(bundles.load(bundle_of("dselect_k per example")))


def test_choosing_fewer_experts_than_selectors() -> None:
    gate = DSelectK(2, 5, 3)
    selection = Selection(5, 3, {"a": {4: 1.0}, "b": {0: 0.25, 2: 0.5, 3: 0.25}})
    choose(gate, selection)
    assert gate.converged().all()
    found = gate.selection(["a", "b"])
    assert found.tasks["b"] == pytest.approx(selection.tasks["b"])
    assert found.tasks["a"] == pytest.approx({4: 1.0})


def test_only_dselect_k_can_be_brought_to_a_choice() -> None:
    with pytest.raises(ValueError, match="DSelect-k"):
        choose(Softmax(1, 2), Selection(2, 1, {"a": {0: 1.0}}))
