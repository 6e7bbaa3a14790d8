"""Tests of the reference model."""

from __future__ import annotations

import pytest

from benchmarks.serving.reference import set_selection
from ranking.encoding.request_batch import SharedItemSplitter
from ranking.frozen.ranker import FrozenRanker
from ranking.gates import DSelectK, Softmax
from ranking.selection import Selection, Shape, flops


def test_reference_model_has_the_documented_shape(ranker: FrozenRanker) -> None:
    schema = ranker.schema
    assert (len(schema.categoricals), len(schema.numerics)) == (30, 20)
    splitter = SharedItemSplitter(ranker.encoder)
    assert (len(splitter.shared.input_columns), len(splitter.items.input_columns)) == (250, 250)
    assert [tuple(weight.shape) for weight, _ in ranker.graph.graphs[0].experts[1]] == [(500, 256), (256, 256)]
    assert [tuple(weight.shape) for weight, _ in ranker.graph.graphs[0].towers["task_7"]] == [(256, 64), (64, 1)]
    assert len(ranker.selection.experts_used) == 4
    assert {len(chosen) for chosen in ranker.selection.tasks.values()} == {2}
    assert (ranker.selection.num_experts, len(ranker.selection.tasks)) == (8, 8)


def test_reference_model_needs_nearly_half_of_the_dense_flops(ranker: FrozenRanker) -> None:
    costs = flops(ranker.selection, Shape(500, (256, 256), (64,)))
    assert ranker.details["flops"] == costs
    assert costs["dense"] / costs["frozen"] == pytest.approx(1.864, abs=0.001)


def test_reference_tables_have_the_requested_rows(ranker: FrozenRanker) -> None:
    assert {owner: len(table) for owner, table in ranker.encoded.items()} == {"user": 40, "item": 300}


def test_set_selection_with_fewer_experts_than_selectors_converges_to_the_selection() -> None:
    gate = DSelectK(2, 5, 3)
    selection = Selection(5, 3, {"a": {4: 1.0}, "b": {0: 0.25, 2: 0.5, 3: 0.25}})
    set_selection(gate, selection)
    assert gate.converged().all()
    result = gate.selection(["a", "b"])
    assert result.tasks["b"] == pytest.approx(selection.tasks["b"])
    assert result.tasks["a"] == pytest.approx({4: 1.0})


def test_set_selection_of_another_gate_raises() -> None:
    with pytest.raises(ValueError, match="DSelect-k"):
        set_selection(Softmax(1, 2), Selection(2, 1, {"a": {0: 1.0}}))
