"""The dense model: what it computes, where it starts, and the conditional phase that trains the chosen experts only."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from ranking.encoding.feature_table import fill_features
from ranking.encoding.encoder import Encoder, encode_labels
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.torch_batch import TorchBatch
from ranking.frozen.calibration import to_probabilities
from ranking.gates import DSelectK
from ranking.gates.config import DSelectKConfig, GateConfig
from ranking.model.embeddings import Embeddings
from ranking.model.losses import task_losses
from ranking.model.mmoe import MMoE, ModelConfig
from ranking.schema import Owner, Schema

MakeModel = Callable[[], MMoE]
MakeMixture = Callable[[GateConfig], MMoE]
SETTINGS: TypeAdapter[GateConfig] = TypeAdapter(GateConfig)


@pytest.fixture(scope="module")
def rows(
    draw_rows: Callable[[int, int], pa.Table], hand_schema: Schema, hand_tables: dict[Owner, Any]
) -> Callable[[int, int], pa.Table]:
    """(rows, seed) → completed rows."""
    return lambda count, seed: fill_features(draw_rows(count, seed), hand_schema, hand_tables)


@pytest.fixture(scope="module")
def inputs(rows: Callable[[int, int], pa.Table], hand_encoder: Encoder) -> TorchBatch:
    return TorchBatch.from_numpy(hand_encoder.encode(rows(40, 1)))


# Configuration.


def test_a_task_cannot_use_more_experts_than_there_are() -> None:
    with pytest.raises(ValidationError, match=r"gate\.k = 4 exceeds the 3 experts: choose k ≤ experts"):
        ModelConfig(experts=3, gate=DSelectKConfig(k=4))


@pytest.mark.parametrize(
    "wrong",
    [
        {"experts": 0},
        {"expert_layers": ()},
        {"expert_layers": (8, 0)},
        {"tower_layers": ()},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"layers": 3},
    ],
    ids=str,
)
def test_sizes_that_make_no_model_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        ModelConfig.model_validate(wrong)


# What it computes.


def test_it_gives_an_output_for_each_row_and_task(make_model: MakeModel, inputs: TorchBatch) -> None:
    outputs = make_model()(inputs)
    assert outputs.shape == (40, 4)
    assert outputs.dtype == torch.float32
    assert outputs.isfinite().all()


def test_each_tasks_tower_reads_its_gates_mixture_of_the_experts(make_model: MakeModel, inputs: TorchBatch) -> None:
    model = make_model()
    with torch.no_grad():
        model.gate.z.uniform_(-0.4, 0.4)  # every expert has a share
    x = model.norm(torch.cat([model.embeddings(inputs), inputs.dense], 1))
    experts, weights, found = model.experts(x), model.gate(), model(inputs)
    for t in range(4):
        hidden = sum(weights[t, e] * experts[e] for e in range(5))
        for layer in model.towers.stack:
            hidden = torch.relu(hidden @ layer.weight[t] + layer.bias[t])
        torch.testing.assert_close(found[:, t], (hidden @ model.output.weight[t] + model.output.bias[t])[:, 0])


EVERY_GATE: list[dict[str, Any]] = [
    {"k": 2},
    {"k": 2, "per_example": True},
    {"kind": "top_k", "k": 2, "per_example": True},
    {"kind": "top_k", "k": 2, "noise": True},
    {"kind": "softmax"},
    {"kind": "softmax", "per_example": True},
    {"kind": "gumbel_softmax"},
    {"kind": "softmax_selectors", "k": 2},
    {"kind": "attentive"},
    {"kind": "shared_bottom"},
]
of_every_gate = pytest.mark.parametrize("gate", EVERY_GATE, ids=str)


@of_every_gate
def test_whatever_the_gate_a_row_is_mixed_by_the_weights_of_its_routing(
    make_mmoe: MakeMixture, inputs: TorchBatch, gate: dict[str, Any]
) -> None:
    model = make_mmoe(SETTINGS.validate_python(gate))
    outputs, x, routing = model.forward_with_routing(inputs)
    assert torch.equal(outputs, model(inputs))
    assert torch.equal(x, model.norm(torch.cat([model.embeddings(inputs), inputs.dense], 1)))
    experts = model.experts(x)
    weights = routing.weights.expand(40, 4, len(experts))
    for row in (0, 17, 39):
        for t in range(4):
            hidden = sum(weights[row, t, e] * experts[e, row] for e in range(len(experts)))
            for layer in model.towers.stack:
                hidden = torch.relu(hidden @ layer.weight[t] + layer.bias[t])
            expected = hidden @ model.output.weight[t] + model.output.bias[t]
            torch.testing.assert_close(outputs[row, t], expected[0])


@of_every_gate
def test_whatever_the_gate_everything_that_can_learn_does(
    make_mmoe: MakeMixture, inputs: TorchBatch, gate: dict[str, Any]
) -> None:
    model = make_mmoe(SETTINGS.validate_python(gate)).train()
    with torch.no_grad():
        for parameter in model.gate.parameters():
            parameter.mul_(0.02)
    model(inputs).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.ne(0).any(), name


def test_its_shape_is_that_of_its_layers(make_model: MakeModel) -> None:
    model = make_model()
    assert model.shape.inputs == model.experts.stack[0].weight.shape[1] == model.norm.num_features
    assert model.shape.expert_layers == (12, 8)
    assert model.shape.tower_layers == (6,)


@pytest.mark.parametrize(
    ("feature", "values"),
    [
        ({"name": "age", "kind": "numeric", "owner": "user"}, [1.0, None, 3.0]),
        ({"name": "brand", "kind": "categorical", "owner": "item"}, ["a", "b", None]),
        ({"name": "tags", "kind": "bag", "owner": "item"}, [["a"], [], None]),
    ],
    ids=["numbers only", "ids only", "bags only"],
)
def test_one_kind_of_feature_is_enough(feature: dict[str, Any], values: list[Any]) -> None:
    schema = Schema.model_validate({"name": "s", "features": [feature], "tasks": [{"name": "click", "kind": "binary"}]})
    table = fill_features(pa.table({feature["name"]: values}), schema, {})
    fitter = EncoderFitter(schema)
    fitter.add(table)
    encoder = fitter.encoder()
    embeddings = Embeddings(schema, {name: space.size for name, space in encoder.id_mappings.items()})
    model = MMoE(ModelConfig(experts=2), 1, embeddings, encoder.dense_size)
    outputs = model(TorchBatch.from_numpy(encoder.encode(table)))
    assert outputs.shape == (3, 1)
    outputs.sum().backward()


def test_everything_learns_at_the_start(make_model: MakeModel, inputs: TorchBatch) -> None:
    model = make_model().train()
    with torch.no_grad():
        model.gate.z.uniform_(-0.02, 0.02)
    model(inputs).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.ne(0).any(), name


# Where it starts.


def test_it_can_start_at_the_base_rates(make_model: MakeModel, inputs: TorchBatch, hand_schema: Schema) -> None:
    model, rates = make_model(), torch.tensor([0.1, 0.75, 2.0, -1.0])
    with torch.no_grad():
        model.output.weight.zero_()
    model.set_output_bias(torch.cat([torch.logit(rates[:2]), rates[2:]]))
    found = to_probabilities(model(inputs).detach().numpy(), hand_schema.tasks)
    np.testing.assert_allclose(found, rates.expand(40, 4), rtol=1e-6)


def test_starting_elsewhere_shifts_every_output_alike(make_model: MakeModel, inputs: TorchBatch) -> None:
    model, shift = make_model(), torch.tensor([1.0, -2.0, 3.0, 0.0])
    before = model(inputs)
    model.set_output_bias(model.output.bias.detach().squeeze(1) + shift)
    torch.testing.assert_close(model(inputs), before + shift)


# Only the chosen experts.


def chosen(model: MMoE) -> list[int]:
    return model.gate.selection().experts_used


def test_dropping_experts_that_nobody_chose_leaves_the_outputs_as_they_were(
    make_model: MakeModel, inputs: TorchBatch
) -> None:
    model = make_model()
    before = model(inputs)
    model.keep_experts(chosen(model))
    assert model.active.tolist() == [0, 1, 2, 3], "nobody chose expert 4"
    assert len(model.experts.stack[0].weight) == 4
    torch.testing.assert_close(model(inputs), before, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("gate", [{"k": 2, "per_example": True}, {"k": 2}, {"kind": "softmax_selectors"}], ids=str)
def test_dropping_the_experts_beyond_a_budget_leaves_the_outputs_as_they_were(
    make_mmoe: MakeMixture, inputs: TorchBatch, gate: dict[str, Any]
) -> None:
    model = make_mmoe(SETTINGS.validate_python(gate))
    model.gate.restrict([1, 2, 4])
    before = model(inputs)
    model.keep_experts([1, 2, 4])
    assert model.positions([4, 1]) == [2, 0]
    torch.testing.assert_close(model(inputs), before, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_after_a_forced_choice_too(make_model: MakeModel, inputs: TorchBatch, seed: int) -> None:
    model = make_model()
    torch.manual_seed(seed)
    with torch.no_grad():
        model.gate.z.uniform_(-0.3, 0.3)
    model.gate.finalize()
    before = model(inputs)
    model.keep_experts(chosen(model))
    torch.testing.assert_close(model(inputs), before, rtol=0.0, atol=1e-6)


def test_experts_are_dropped_by_number_not_by_position(
    make_model: MakeModel, inputs: TorchBatch, set_codes: Callable[[DSelectK, list[list[int]]], None]
) -> None:
    model = make_model()
    set_codes(model.gate, [[1, 3], [3, 1], [3, 3], [1, 1]])
    before = model(inputs)
    for kept in ([0, 1, 3], [1, 3]):
        model.keep_experts(kept)
        assert model.active.tolist() == kept
        torch.testing.assert_close(model(inputs), before, rtol=0.0, atol=1e-6)


def test_a_pruned_models_state_loads_into_a_new_model(make_model: MakeModel, inputs: TorchBatch) -> None:
    model, again = make_model(), make_model()
    model.keep_experts(chosen(model))
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    again.keep_experts(model.state_dict()["active"].tolist())
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(inputs), model(inputs))


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_training_the_chosen_experts_only_gives_the_numbers_of_training_all(
    make_model: MakeModel,
    rows: Callable[[int, int], pa.Table],
    hand_encoder: Encoder,
    hand_schema: Schema,
    optimiser: type[torch.optim.Optimizer],
) -> None:
    dense = make_model().double().train()
    with torch.no_grad():
        dense.gate.z.mul_(0.3)  # inside the fractional region
    dense.gate.finalize()
    pruned = copy.deepcopy(dense)
    start = copy.deepcopy(dense.state_dict())
    kept = chosen(pruned)
    pruned.keep_experts(kept)
    assert len(kept) < 5

    for model in (dense, pruned):
        steps = optimiser(model.parameters(), lr=0.01)  # type: ignore[call-arg]
        for batch in range(6):
            table = rows(32, 100 + batch)
            inputs = TorchBatch.from_numpy(hand_encoder.encode(table))
            outputs = model(dataclasses.replace(inputs, dense=inputs.dense.double()))
            labels = torch.from_numpy(encode_labels(table, hand_schema.tasks)).double()
            loss = task_losses(outputs, labels, hand_schema.tasks).sum()
            steps.zero_grad()
            loss.backward()
            steps.step()

    for name, value in pruned.state_dict().items():
        expected = dense.state_dict()[name]
        if name.startswith("experts."):
            expected = expected[kept]
        if name == "active":
            continue
        torch.testing.assert_close(value, expected, rtol=0.0, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")
    assert torch.equal(pruned.gate.z, start["gate.z"]), "the choice stays"
    for part in ("gate.alpha", "experts.layers.0.weight", "towers.layers.0.weight", "output.bias"):
        assert not torch.allclose(dense.state_dict()[part], start[part], rtol=0.0, atol=1e-5), f"{part} was trained"
