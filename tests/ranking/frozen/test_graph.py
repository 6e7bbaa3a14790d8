"""Frozen graph of every kind of gate; with a per-example gate, an expert runs only on rows that selected it."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

import ranking
from ranking.artifacts import bundle, checksums
from ranking.encoding.batch import EncodedBatch
from ranking.encoding.encoder import Encoder
from ranking.encoding.feature_table import FeatureTable
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import BundleError, NotConvergedError
from ranking.frozen.freeze import freeze
from ranking.frozen.graph import FrozenGraph
from ranking.frozen.ranker import FrozenRanker
from ranking.frozen.weights import validate_weight_shapes
from ranking.gates.base import mean_selection
from ranking.model.mmoe import ForwardOutput, MMoE
from ranking.schema import Owner, Schema
from ranking.selection import Reading
from ranking.settings.gate import GateConfig
from tests.support.one_model import weights_of, with_weights

MakeMMoE = Callable[..., MMoE]
DrawRows = Callable[[int, int], pa.Table]
GATE_CONFIG: TypeAdapter[GateConfig] = TypeAdapter(GateConfig)

STATIC: dict[str, dict[str, Any]] = {
    "dselect_k": {"k": 2},
    "dselect_k penalty": {"k": 2, "surplus": "penalty"},
    "top_k": {"kind": "top_k", "k": 3, "noise": True},
    "softmax": {"kind": "softmax"},
    "gumbel_softmax": {"kind": "gumbel_softmax"},
    "softmax_selectors": {"kind": "softmax_selectors", "k": 2},
    "shared_bottom": {"kind": "shared_bottom"},
    "dselect_k, scaled": {"k": 2, "reading": "scaled"},
    "dselect_k, side by side": {"k": 2, "reading": "side_by_side"},
    "softmax_selectors, side by side": {"kind": "softmax_selectors", "k": 3, "reading": "side_by_side"},
    "gumbel_softmax, scaled": {"kind": "gumbel_softmax", "reading": "scaled"},
    "shared_bottom, side by side": {"kind": "shared_bottom", "reading": "side_by_side"},
}
"""Settings of a gate, and ``model.reading``."""
PER_EXAMPLE: dict[str, dict[str, Any]] = {
    "dselect_k per example": {"k": 2, "per_example": True},
    "dselect_k random per example": {"k": 2, "per_example": True, "surplus": "random"},
    "dselect_k penalty per example": {"k": 1, "per_example": True, "surplus": "penalty"},
    "dselect_k per example with a budget": {"k": 2, "per_example": True, "experts_budget": 3},
    "top_k per example": {"kind": "top_k", "k": 2, "per_example": True, "noise": True},
    "softmax per example": {"kind": "softmax", "per_example": True},
    "attentive, distilled": {"kind": "attentive"},
}


@dataclass(frozen=True)
class Pair:
    """A dense model, its frozen ranker, and encoded rows."""

    model: MMoE
    ranker: FrozenRanker
    inputs: EncodedBatch

    @property
    def tensors(self) -> TorchBatch:
        """The rows as tensors, which the graph reads."""
        return TorchBatch.from_numpy(self.inputs)

    def dense(self) -> ForwardOutput:
        """Run the dense model in float64, because float32 rounding could change the selected experts."""
        model = copy.deepcopy(self.model).double()
        with torch.inference_mode():
            return model.forward_with_routing(replace(self.tensors, dense=self.tensors.dense.double()))


@pytest.fixture(scope="module")
def frozen(
    make_mmoe: MakeMMoE, hand_encoder: Encoder, hand_tables: dict[Owner, FeatureTable], hand_schema: Schema
) -> Callable[[str], tuple[MMoE, FrozenRanker]]:
    """Function (kind of gate) that returns a model with a final gate and its frozen ranker."""

    def make(kind: str) -> tuple[MMoE, FrozenRanker]:
        settings = dict((STATIC | PER_EXAMPLE)[kind])
        reading = settings.pop("reading", "sum")
        config = GATE_CONFIG.validate_python(settings)
        model = make_mmoe(config, reading)
        experts = list(range(5))
        if "budget" in kind:
            experts = [0, 2, 3]
            model.gate.restrict(experts)
        model.gate = model.gate.serving_gate()
        model.gate.finalize()
        model.keep_experts(experts if config.kind != "shared_bottom" else [0])
        routed = None
        if model.gate.per_example:
            means = torch.full((len(hand_schema.tasks), 5), 1 / len(experts))
            routed = (config, mean_selection(means, hand_schema.task_names, model.gate.k, experts))
        return model.eval(), freeze(model, hand_encoder, hand_tables, {"click": 1.0}, {}, routed)

    return make


@pytest.fixture
def pair(
    request: pytest.FixtureRequest, frozen: Callable[[str], tuple[MMoE, FrozenRanker]], draw_rows: DrawRows
) -> Pair:
    model, ranker = frozen(request.param)
    return Pair(model, ranker, ranker.encoder.encode(ranker.complete(draw_rows(120, 5))))


every_gate = pytest.mark.parametrize("pair", STATIC | PER_EXAMPLE, indirect=True)
per_example_gates = pytest.mark.parametrize("pair", PER_EXAMPLE, indirect=True)


def task_subsets(tasks: Sequence[str]) -> list[tuple[str, ...]]:
    return [names for size in range(1, len(tasks) + 1) for names in itertools.combinations(tasks, size)]


# Equality with the dense model.


@every_gate
def test_frozen_graph_outputs_equal_dense_model_for_every_subset_of_tasks(pair: Pair) -> None:
    names, dense = pair.ranker.schema.task_names, pair.dense().outputs
    assert float(dense.std(0).min()) > 3e-4, "constant outputs would make this test meaningless"
    for subset in [*task_subsets(names), tuple(reversed(names))]:
        with torch.inference_mode():
            outputs = pair.ranker.graph(pair.tensors, subset)
        assert outputs.dtype == torch.float64
        columns = [names.index(name) for name in subset]
        torch.testing.assert_close(outputs, dense[:, columns], rtol=3e-6, atol=3e-6)


@every_gate
def test_frozen_graph_routing_equals_gate_weights(pair: Pair) -> None:
    with torch.inference_mode():
        weights = pair.ranker.graph.routing(pair.tensors)
    assert weights.dtype == torch.float64
    torch.testing.assert_close(weights, pair.dense().routing.weights, rtol=1e-6, atol=1e-6)


@every_gate
def test_explain_returns_mean_gate_weights_of_rows(pair: Pair) -> None:
    ranker, names = pair.ranker, pair.ranker.schema.task_names
    weights = np.broadcast_to(ranker.graph.routing(pair.tensors), (120, len(names), ranker.selection.num_experts))
    explanation = ranker.explain(pair.inputs, ["rating", "click"])
    assert list(explanation) == ["rating", "click"]
    for task, experts in explanation.items():
        mean = weights[:, names.index(task)].mean(0)
        assert sorted(experts) == np.flatnonzero(mean).tolist()
        assert list(experts.values()) == pytest.approx([mean[expert] for expert in experts], abs=1e-12)


@per_example_gates
def test_explain_of_no_rows_is_empty(pair: Pair) -> None:
    assert pair.ranker.explain(pair.inputs.take(np.empty(0, np.int64)), ["like"]) == {"like": {}}


@every_gate
def test_frozen_graph_outputs_of_row_do_not_depend_on_other_rows(pair: Pair) -> None:
    ranker, names = pair.ranker, pair.ranker.schema.task_names
    together, order = ranker.outputs(pair.inputs, names), np.random.default_rng(0).permutation(120)
    for rows in (order, *np.arange(0, 120, 11)[:, None]):
        outputs = ranker.outputs(pair.inputs.take(rows), names)
        np.testing.assert_allclose(outputs, together[rows], rtol=1e-12, atol=1e-12)


@every_gate
def test_frozen_graph_of_no_rows_returns_no_outputs(pair: Pair) -> None:
    empty = pair.inputs.take(np.empty(0, np.int64))
    assert pair.ranker.outputs(empty, ["like", "watch"]).shape == (0, 2)
    columns = {feature.column: pa.nulls(0) for feature in pair.ranker.schema.inputs}
    assert pair.ranker.score(pa.table(columns)).num_rows == 0


@every_gate
def test_frozen_graph_has_no_gradient_and_keeps_random_state(pair: Pair) -> None:
    state = torch.get_rng_state()
    assert not pair.ranker.graph(pair.tensors, ["click"]).requires_grad
    assert torch.equal(torch.get_rng_state(), state)


@every_gate
def test_frozen_ranker_outputs_equal_those_of_its_graph(pair: Pair) -> None:
    outputs = pair.ranker.outputs(pair.inputs, ["watch", "click"])
    assert outputs.dtype == np.float64
    np.testing.assert_array_equal(outputs, pair.ranker.graph(pair.tensors, ["watch", "click"]))


# Selected experts only.


@per_example_gates
def test_per_example_graph_runs_each_expert_only_on_rows_that_selected_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, names = pair.ranker.graph, pair.ranker.schema.task_names
    rows_by_expert: dict[int, int] = {}
    original = FrozenGraph._expert

    def count_rows(self: FrozenGraph, expert: int, x: Tensor) -> Tensor:
        rows_by_expert[expert] = rows_by_expert.get(expert, 0) + len(x)
        return original(self, expert, x)

    monkeypatch.setattr(FrozenGraph, "_expert", count_rows)
    weights = graph.routing(pair.tensors)
    for subset in task_subsets(names):
        rows_by_expert.clear()
        graph(pair.tensors, subset)
        selected_rows = (weights[:, [names.index(name) for name in subset]] > 0).any(1).sum(0)
        assert rows_by_expert == {e: int(rows) for e, rows in enumerate(selected_rows) if rows}, subset
    if pair.model.gate.k < 5:
        rows_by_expert.clear()
        graph(pair.tensors, names[:1])
        assert sum(rows_by_expert.values()) <= pair.model.gate.k * 120, "at most k experts per row"


@per_example_gates
def test_per_example_graph_expert_affects_only_rows_that_selected_it(pair: Pair) -> None:
    """Also if the weights are NaN and another requested task of the row selected the expert."""
    ranker, names = pair.ranker, pair.ranker.schema.task_names
    weights = ranker.graph.routing(pair.tensors).numpy()
    for expert in ranker.selection.experts_used:
        weights_with_nan = {
            name: np.full_like(weight, np.nan) if name.startswith(f"expert.{expert}.") else weight
            for name, weight in weights_of(ranker).items()
        }
        outputs = with_weights(ranker, weights_with_nan).outputs(pair.inputs, names)
        np.testing.assert_array_equal(np.isnan(outputs), weights[:, :, expert] > 0)


def test_frozen_ranker_excludes_experts_removed_by_budget(frozen: Callable[[str], tuple[MMoE, FrozenRanker]]) -> None:
    _, ranker = frozen("dselect_k per example with a budget")
    experts = {name.split(".")[1] for name in weights_of(ranker) if name.startswith("expert.")}
    assert experts == {"0", "2", "3"}


def test_frozen_ranker_of_static_gate_excludes_unselected_experts(
    frozen: Callable[[str], tuple[MMoE, FrozenRanker]],
) -> None:
    for kind in STATIC:
        _, ranker = frozen(kind)
        experts = {int(name.split(".")[1]) for name in weights_of(ranker) if name.startswith("expert.")}
        assert sorted(experts) == ranker.selection.experts_used
        assert not any(name.startswith(("gate.", "norm.")) for name in weights_of(ranker))


@pytest.mark.parametrize("reading", get_args(Reading))
def test_frozen_graph_evaluates_only_experts_of_requested_tasks(
    ranker_of: Callable[[Reading], FrozenRanker], draw_rows: DrawRows, reading: Reading
) -> None:
    """Others are NaN, which a product with 0 would keep."""
    ranker = ranker_of(reading)
    inputs, names = ranker.encoder.encode(ranker.complete(draw_rows(20, 5))), ranker.schema.task_names
    expected = ranker.outputs(inputs, names)
    for subset in task_subsets(names):
        needed = {f"expert.{expert}" for expert in ranker.selection.experts_for(subset)}
        weights = {
            name: np.full_like(weight, np.nan)
            if name.startswith("expert.") and name.rpartition(".")[0].rpartition(".")[0] not in needed
            else weight
            for name, weight in weights_of(ranker).items()
        }
        outputs = with_weights(ranker, weights).outputs(inputs, subset)
        np.testing.assert_array_equal(outputs, expected[:, [names.index(name) for name in subset]])


# Validation.


def test_freeze_of_per_example_gate_without_settings_raises(make_mmoe: MakeMMoE, hand_encoder: Encoder) -> None:
    model = make_mmoe(GATE_CONFIG.validate_python(PER_EXAMPLE["top_k per example"]))
    with pytest.raises(ValueError, match="needs examples: pass x"):
        freeze(model, hand_encoder, {}, {})


@pytest.mark.parametrize("kind", ["dselect_k per example", "gumbel_softmax", "softmax_selectors"])
def test_freeze_of_gate_that_is_not_final_raises(
    make_mmoe: MakeMMoE, hand_encoder: Encoder, hand_schema: Schema, kind: str
) -> None:
    config = GATE_CONFIG.validate_python((STATIC | PER_EXAMPLE)[kind])
    model = make_mmoe(config)
    means = mean_selection(torch.full((4, 5), 0.2), hand_schema.task_names, 2)
    for routed in (None, (config, means)):
        with pytest.raises(NotConvergedError, match="has not converged"):
            freeze(model, hand_encoder, {}, {}, routed=routed)


def test_freeze_of_attentive_gate_before_distillation_raises(
    make_mmoe: MakeMMoE, hand_encoder: Encoder, hand_schema: Schema
) -> None:
    config = GATE_CONFIG.validate_python({"kind": "attentive"})
    model = make_mmoe(config)
    means = mean_selection(torch.full((4, 5), 0.2), hand_schema.task_names, 5)
    for routed in (None, (config, means)):
        with pytest.raises(NotConvergedError, match="distilled into a per-example softmax gate"):
            freeze(model, hand_encoder, {}, {}, routed=routed)


# Bundles.


@every_gate
def test_bundle_of_every_gate_loads_with_same_gate_and_scores(pair: Pair, draw_rows: DrawRows, tmp_path: Path) -> None:
    rows = draw_rows(50, 12)
    bundle.write_bundle(pair.ranker, pair.ranker.complete(draw_rows(16, 11)), tmp_path / "bundle")
    loaded = ranking.load(tmp_path / "bundle")
    assert loaded.selection == pair.ranker.selection
    assert loaded.models[0].gate == pair.ranker.models[0].gate
    assert loaded.per_example == pair.model.gate.per_example
    assert (tmp_path / "bundle" / "body.onnx").exists() == (not loaded.per_example)
    for tasks in (None, ["watch"], ["rating", "click"]):
        assert loaded.score(rows, tasks).equals(pair.ranker.score(rows, tasks))


@pytest.mark.parametrize("reading", ["scaled", "side_by_side"])
def test_bundle_of_another_reading_has_a_format_of_its_own_and_is_validated(
    ranker_of: Callable[[Reading], FrozenRanker], draw_rows: DrawRows, tmp_path: Path, reading: Reading
) -> None:
    """A service of an earlier version, which would add up the experts, must reject it."""
    ranker, folder = ranker_of(reading), tmp_path / "bundle"
    bundle.write_bundle(ranker, ranker.complete(draw_rows(16, 11)), folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["format"] == 5
    messages = {"sum": "golden rows score differently|tower.click", "future": "reading 'future' is unknown"}
    for other, message in messages.items():
        selection = manifest["selection"] | {"reading": other}
        (folder / "manifest.json").write_text(json.dumps(manifest | {"selection": selection}))
        checksums.write_checksums(folder)
        with pytest.raises(BundleError, match=message):
            ranking.load(folder)
    name = next(name for name in weights_of(ranker) if name.startswith(("factors.click", "tower.click.0.weight")))
    with pytest.raises(ValueError, match=f"does not contain '{name}'"):
        validate_weight_shapes(
            {key: weight for key, weight in weights_of(ranker).items() if key != name}, ranker.encoder, ranker.selection
        )
    shortened = {**weights_of(ranker), name: weights_of(ranker)[name][:-1]}
    with pytest.raises(ValueError, match=f"'{name}' has shape"):
        validate_weight_shapes(shortened, ranker.encoder, ranker.selection)


@pytest.mark.parametrize("gate", [None, {"kind": "softmax", "per_example": True}, {"kind": "nothing"}, 3], ids=str)
def test_bundle_with_gate_that_contradicts_weights_is_rejected(
    frozen: Callable[[str], tuple[MMoE, FrozenRanker]], draw_rows: DrawRows, tmp_path: Path, gate: Any
) -> None:
    _, ranker = frozen("dselect_k per example")
    folder = tmp_path / "bundle"
    bundle.write_bundle(ranker, ranker.complete(draw_rows(16, 11)), folder)
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"gate": gate}))
    checksums.write_checksums(folder)
    with pytest.raises(BundleError, match=r"contains inconsistent files|golden rows score differently"):
        ranking.load(folder)
