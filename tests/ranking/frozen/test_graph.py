"""The sparse inference graph of every kind of gate; per example, an expert runs on just the rows that chose it."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor

import ranking
from ranking.artifacts import bundle, checksums
from ranking.encoding.batch import EncodedBatch
from ranking.encoding.feature_table import FeatureTable
from ranking.encoding.encoder import Encoder
from ranking.encoding.torch_batch import TorchBatch
from ranking.errors import BundleError, NotConvergedError
from ranking.frozen.freeze import freeze
from ranking.frozen.graph import FrozenGraph
from ranking.frozen.ranker import FrozenRanker
from ranking.gates.base import mean_selection
from ranking.gates.config import GateConfig
from ranking.model.mmoe import ForwardOutput, MMoE
from ranking.schema import Owner, Schema

MakeMixture = Callable[[GateConfig], MMoE]
DrawRows = Callable[[int, int], pa.Table]
SETTINGS: TypeAdapter[GateConfig] = TypeAdapter(GateConfig)

STATIC: dict[str, dict[str, Any]] = {
    "dselect_k": {"k": 2},
    "dselect_k penalty": {"k": 2, "surplus": "penalty"},
    "top_k": {"kind": "top_k", "k": 3, "noise": True},
    "softmax": {"kind": "softmax"},
    "gumbel_softmax": {"kind": "gumbel_softmax"},
    "softmax_selectors": {"kind": "softmax_selectors", "k": 2},
    "shared_bottom": {"kind": "shared_bottom"},
}
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
    """A dense model, what it was frozen to, and rows."""

    model: MMoE
    ranker: FrozenRanker
    inputs: EncodedBatch

    @property
    def tensors(self) -> TorchBatch:
        """What the graph reads of the rows."""
        return TorchBatch.from_numpy(self.inputs)

    def dense(self) -> ForwardOutput:
        """The dense model's pass in float64: a choice on the border may fall on the other side in float32."""
        model = copy.deepcopy(self.model).double()
        with torch.inference_mode():
            return model.forward_with_routing(replace(self.tensors, dense=self.tensors.dense.double()))


@pytest.fixture(scope="module")
def frozen(
    make_mmoe: MakeMixture, hand_encoder: Encoder, hand_tables: dict[Owner, FeatureTable], hand_schema: Schema
) -> Callable[[str], tuple[MMoE, FrozenRanker]]:
    """A kind of gate → a model with such a gate, its choice final, and what it was frozen to."""

    def make(kind: str) -> tuple[MMoE, FrozenRanker]:
        config = SETTINGS.validate_python((STATIC | PER_EXAMPLE)[kind])
        model = make_mmoe(config)
        experts = list(range(5))
        if "budget" in kind:
            experts = [0, 2, 3]
            model.gate.restrict(experts)
        model.gate = model.gate.serving_gate()
        model.gate.finalize()
        model.keep_experts(experts if kind != "shared_bottom" else [0])
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


of_every_gate = pytest.mark.parametrize("pair", STATIC | PER_EXAMPLE, indirect=True)
of_examples = pytest.mark.parametrize("pair", PER_EXAMPLE, indirect=True)


def subsets(tasks: Sequence[str]) -> list[tuple[str, ...]]:
    return [names for size in range(1, len(tasks) + 1) for names in itertools.combinations(tasks, size)]


# The same numbers.


@of_every_gate
def test_frozen_is_dense_for_every_subset_of_tasks(pair: Pair) -> None:
    names, dense = pair.ranker.schema.task_names, pair.dense().outputs
    assert float(dense.std(0).min()) > 3e-4, "a constant would prove nothing"
    for some in [*subsets(names), tuple(reversed(names))]:
        with torch.inference_mode():
            found = pair.ranker.graph(pair.tensors, some)
        assert found.dtype == torch.float64
        columns = [names.index(name) for name in some]
        torch.testing.assert_close(found, dense[:, columns], rtol=3e-6, atol=3e-6)


@of_every_gate
def test_its_routing_is_the_gates(pair: Pair) -> None:
    with torch.inference_mode():
        found = pair.ranker.graph.routing(pair.tensors)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, pair.dense().routing.weights, rtol=1e-6, atol=1e-6)


@of_every_gate
def test_a_score_is_explained_by_the_mean_weights_of_its_rows(pair: Pair) -> None:
    ranker, names = pair.ranker, pair.ranker.schema.task_names
    weights = np.broadcast_to(ranker.graph.routing(pair.tensors), (120, len(names), ranker.selection.num_experts))
    found = ranker.explain(pair.inputs, ["rating", "click"])
    assert list(found) == ["rating", "click"]
    for task, experts in found.items():
        mean = weights[:, names.index(task)].mean(0)
        assert sorted(experts) == np.flatnonzero(mean).tolist()
        assert list(experts.values()) == pytest.approx([mean[expert] for expert in experts], abs=1e-12)


@of_examples
def test_of_no_rows_there_is_nothing_to_explain(pair: Pair) -> None:
    assert pair.ranker.explain(pair.inputs.take(np.empty(0, np.int64)), ["like"]) == {"like": {}}


@of_every_gate
def test_a_row_scores_alike_in_any_company_or_alone(pair: Pair) -> None:
    ranker, names = pair.ranker, pair.ranker.schema.task_names
    whole, order = ranker.outputs(pair.inputs, names), np.random.default_rng(0).permutation(120)
    for rows in (order, *np.arange(0, 120, 11)[:, None]):
        found = ranker.outputs(pair.inputs.take(rows), names)
        np.testing.assert_allclose(found, whole[rows], rtol=1e-12, atol=1e-12)


@of_every_gate
def test_no_rows_give_no_outputs(pair: Pair) -> None:
    nothing = pair.inputs.take(np.empty(0, np.int64))
    assert pair.ranker.outputs(nothing, ["like", "watch"]).shape == (0, 2)
    assert pair.ranker.score(pa.table({})).num_rows == 0


@of_every_gate
def test_scoring_needs_no_gradient_and_draws_nothing(pair: Pair) -> None:
    state = torch.get_rng_state()
    assert not pair.ranker.graph(pair.tensors, ["click"]).requires_grad
    assert torch.equal(torch.get_rng_state(), state)


@of_every_gate
def test_a_rankers_outputs_are_its_graphs(pair: Pair) -> None:
    found = pair.ranker.outputs(pair.inputs, ["watch", "click"])
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, pair.ranker.graph(pair.tensors, ["watch", "click"]))


# Only what is needed.


@of_examples
def test_each_expert_runs_on_just_the_rows_that_chose_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, names = pair.ranker.graph, pair.ranker.schema.task_names
    ran: dict[int, int] = {}
    original = FrozenGraph._expert

    def counted(self: FrozenGraph, expert: int, x: Tensor) -> Tensor:
        ran[expert] = ran.get(expert, 0) + len(x)
        return original(self, expert, x)

    monkeypatch.setattr(FrozenGraph, "_expert", counted)
    weights = graph.routing(pair.tensors)
    for some in subsets(names):
        ran.clear()
        graph(pair.tensors, some)
        chosen = (weights[:, [names.index(name) for name in some]] > 0).any(1).sum(0)
        assert ran == {e: int(rows) for e, rows in enumerate(chosen) if rows}, some
    if pair.model.gate.k < 5:
        ran.clear()
        graph(pair.tensors, names[:1])
        assert sum(ran.values()) <= pair.model.gate.k * 120, "at most k experts a row"


@of_examples
def test_what_no_row_chose_has_no_part_in_its_outputs(pair: Pair) -> None:
    """Nor if the expert is broken and another task, asked for beside this one, does need it."""
    ranker, names = pair.ranker, pair.ranker.schema.task_names
    weights = ranker.graph.routing(pair.tensors).numpy()
    for expert in ranker.selection.experts_used:
        spoilt = {
            name: np.full_like(weight, np.nan) if name.startswith(f"expert.{expert}.") else weight
            for name, weight in ranker.weights.items()
        }
        found = replace(ranker, weights=spoilt).outputs(pair.inputs, names)
        np.testing.assert_array_equal(np.isnan(found), weights[:, :, expert] > 0)


def test_experts_that_the_budget_dropped_do_not_exist(frozen: Callable[[str], tuple[MMoE, FrozenRanker]]) -> None:
    _, ranker = frozen("dselect_k per example with a budget")
    found = {name.split(".")[1] for name in ranker.weights if name.startswith("expert.")}
    assert found == {"0", "2", "3"}


def test_experts_that_a_static_gate_did_not_choose_do_not_exist(
    frozen: Callable[[str], tuple[MMoE, FrozenRanker]],
) -> None:
    for kind in STATIC:
        _, ranker = frozen(kind)
        found = {int(name.split(".")[1]) for name in ranker.weights if name.startswith("expert.")}
        assert sorted(found) == ranker.selection.experts_used
        assert not any(name.startswith(("gate.", "norm.")) for name in ranker.weights)


# What is refused.


def test_a_per_example_gate_cannot_be_frozen_without_its_settings(
    make_mmoe: MakeMixture, hand_encoder: Encoder
) -> None:
    model = make_mmoe(SETTINGS.validate_python(PER_EXAMPLE["top_k per example"]))
    with pytest.raises(ValueError, match="needs examples: pass x"):
        freeze(model, hand_encoder, {}, {})


@pytest.mark.parametrize("kind", ["dselect_k per example", "gumbel_softmax", "softmax_selectors"])
def test_a_choice_that_is_not_final_cannot_be_frozen(
    make_mmoe: MakeMixture, hand_encoder: Encoder, hand_schema: Schema, kind: str
) -> None:
    config = SETTINGS.validate_python((STATIC | PER_EXAMPLE)[kind])
    model = make_mmoe(config)
    means = mean_selection(torch.full((4, 5), 0.2), hand_schema.task_names, 2)
    for routed in (None, (config, means)):
        with pytest.raises(NotConvergedError, match="has not converged"):
            freeze(model, hand_encoder, {}, {}, routed=routed)


def test_an_attentive_gate_cannot_be_frozen_before_it_is_distilled(
    make_mmoe: MakeMixture, hand_encoder: Encoder, hand_schema: Schema
) -> None:
    config = SETTINGS.validate_python({"kind": "attentive"})
    model = make_mmoe(config)
    means = mean_selection(torch.full((4, 5), 0.2), hand_schema.task_names, 5)
    for routed in (None, (config, means)):
        with pytest.raises(NotConvergedError, match="distilled into a per-example softmax gate"):
            freeze(model, hand_encoder, {}, {}, routed=routed)


# On disk.


@of_every_gate
def test_a_bundle_brings_the_gate_back(pair: Pair, draw_rows: DrawRows, tmp_path: Path) -> None:
    rows = draw_rows(50, 12)
    bundle.write_bundle(pair.ranker, pair.ranker.complete(draw_rows(16, 11)), tmp_path / "bundle")
    loaded = ranking.load(tmp_path / "bundle")
    assert loaded.selection == pair.ranker.selection
    assert loaded.gate == pair.ranker.gate
    assert (loaded.gate is not None) == pair.model.gate.per_example
    for tasks in (None, ["watch"], ["rating", "click"]):
        assert loaded.score(rows, tasks).equals(pair.ranker.score(rows, tasks))


@pytest.mark.parametrize("gate", [None, {"kind": "softmax", "per_example": True}, {"kind": "nothing"}, 3], ids=str)
def test_a_bundle_whose_gate_is_not_that_of_its_weights_is_refused(
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
