"""Dense model: forward pass, initial outputs, and training of the selected experts only."""

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

from ranking.encoding.encoder import Encoder, encode_labels
from ranking.encoding.encoder_fitter import EncoderFitter
from ranking.encoding.feature_table import fill_features
from ranking.encoding.torch_batch import TorchBatch
from ranking.frozen.calibration import to_probabilities
from ranking.gates import DSelectK
from ranking.model.dense_inputs import DenseInputs
from ranking.model.embeddings import Embeddings
from ranking.model.losses import task_losses
from ranking.model.mmoe import MMoE
from ranking.model.readings import ScaledSum, SideBySide
from ranking.schema import Owner, Schema
from ranking.selection import Reading
from ranking.settings.gate import GateConfig
from ranking.settings.model import ModelConfig

MakeModel = Callable[..., MMoE]
MakeMMoE = Callable[..., MMoE]
GATE_CONFIG: TypeAdapter[GateConfig] = TypeAdapter(GateConfig)


@pytest.fixture(scope="module")
def rows(
    draw_rows: Callable[[int, int], pa.Table], hand_schema: Schema, hand_tables: dict[Owner, Any]
) -> Callable[[int, int], pa.Table]:
    """Function (rows, seed) that draws log rows and fills in their features."""
    return lambda count, seed: fill_features(draw_rows(count, seed), hand_schema, hand_tables)


@pytest.fixture(scope="module")
def inputs(rows: Callable[[int, int], pa.Table], hand_encoder: Encoder) -> TorchBatch:
    return TorchBatch.from_numpy(hand_encoder.encode(rows(40, 1)))


# Configuration.


@pytest.mark.parametrize(
    "sizes",
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
def test_model_config_invalid_size_is_rejected(sizes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(sizes))):
        ModelConfig.model_validate(sizes)


# Forward pass.


def test_mmoe_outputs_are_finite_float32_per_row_and_task(make_model: MakeModel, inputs: TorchBatch) -> None:
    outputs = make_model()(inputs)
    assert outputs.shape == (40, 4)
    assert outputs.dtype == torch.float32
    assert outputs.isfinite().all()


def test_mmoe_tower_input_is_gate_weighted_sum_of_experts(make_model: MakeModel, inputs: TorchBatch) -> None:
    model = make_model()
    with torch.no_grad():
        model.gate.z.uniform_(-0.4, 0.4)  # Every expert has a nonzero weight.
    x = model.norm(torch.cat([model.embeddings(inputs), model.dense(inputs.dense)], 1))
    experts, weights, outputs = model.experts(x), model.gate(), model(inputs)
    for t in range(4):
        hidden = sum(weights[t, e] * experts[e] for e in range(5))
        for layer in model.towers.stack:
            hidden = torch.relu(hidden @ layer.weight[t] + layer.bias[t])
        torch.testing.assert_close(outputs[:, t], (hidden @ model.output.weight[t] + model.output.bias[t])[:, 0])


def test_mmoe_tower_input_scaled_weights_each_unit_of_the_experts(make_model: MakeModel, inputs: TorchBatch) -> None:
    model = make_model("scaled")
    assert isinstance(model.reading, ScaledSum)
    experts, weights, outputs = model.experts(model.forward_with_routing(inputs).x), model.gate(), model(inputs)
    for t in range(4):
        hidden = sum(2 * weights[t, e] * model.reading.scale[e, t] * experts[e] for e in range(5))
        for layer in model.towers.stack:
            hidden = torch.relu(hidden @ layer.weight[t] + layer.bias[t])
        torch.testing.assert_close(outputs[:, t], (hidden @ model.output.weight[t] + model.output.bias[t])[:, 0])


def test_mmoe_tower_side_by_side_has_a_block_of_its_first_layer_per_expert(
    make_model: MakeModel, inputs: TorchBatch
) -> None:
    model = make_model("side_by_side")
    assert isinstance(model.reading, SideBySide)
    assert not model.towers.stack, "the only layer is part of the reading"
    experts, weights, outputs = model.experts(model.forward_with_routing(inputs).x), model.gate(), model(inputs)
    for t in range(4):
        hidden = sum(2 * weights[t, e] * (experts[e] @ model.reading.blocks[e, t]) for e in range(5))
        hidden = torch.relu(hidden + model.reading.bias[t])
        torch.testing.assert_close(outputs[:, t], (hidden @ model.output.weight[t] + model.output.bias[t])[:, 0])


@pytest.mark.parametrize("reading", ["scaled", "side_by_side"])
def test_mmoe_of_every_reading_has_gradients_and_keeps_outputs_without_unselected_experts(
    make_mmoe: MakeMMoE, make_model: MakeModel, inputs: TorchBatch, reading: Reading
) -> None:
    model = make_mmoe(GATE_CONFIG.validate_python({"k": 2}), reading).train()
    with torch.no_grad():
        model.gate.z.mul_(0.02)
    model(inputs).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.ne(0).any(), name
    model = make_model(reading)
    before = model(inputs)
    model.keep_experts(selected_experts(model))
    assert {len(parameter) for name, parameter in model.named_parameters() if name.startswith("experts.")} == {4}
    torch.testing.assert_close(model(inputs), before, rtol=0.0, atol=1e-5)
    assert model.selection().reading == reading


@pytest.mark.parametrize("gate", [{"k": 2, "per_example": True}, {"kind": "attentive"}], ids=str)
def test_model_config_reading_of_a_per_example_gate_is_rejected(gate: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match='reading = "scaled" needs a gate that selects per task'):
        ModelConfig.model_validate({"gate": gate, "reading": "scaled"})


GATES: list[dict[str, Any]] = [
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
every_gate = pytest.mark.parametrize("gate", GATES, ids=str)


@every_gate
def test_mmoe_of_every_gate_mixes_experts_by_routing_weights(
    make_mmoe: MakeMMoE, inputs: TorchBatch, gate: dict[str, Any]
) -> None:
    model = make_mmoe(GATE_CONFIG.validate_python(gate))
    outputs, x, routing = model.forward_with_routing(inputs)
    assert torch.equal(outputs, model(inputs))
    assert torch.equal(x, model.norm(torch.cat([model.embeddings(inputs), model.dense(inputs.dense)], 1)))
    experts = model.experts(x)
    weights = routing.weights.expand(40, 4, len(experts))
    for row in (0, 17, 39):
        for t in range(4):
            hidden = sum(weights[row, t, e] * experts[e, row] for e in range(len(experts)))
            for layer in model.towers.stack:
                hidden = torch.relu(hidden @ layer.weight[t] + layer.bias[t])
            expected = hidden @ model.output.weight[t] + model.output.bias[t]
            torch.testing.assert_close(outputs[row, t], expected[0])


@every_gate
def test_mmoe_of_every_gate_has_nonzero_gradients_for_all_parameters(
    make_mmoe: MakeMMoE, inputs: TorchBatch, gate: dict[str, Any]
) -> None:
    model = make_mmoe(GATE_CONFIG.validate_python(gate)).train()
    with torch.no_grad():
        for parameter in model.gate.parameters():
            parameter.mul_(0.02)
    model(inputs).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.ne(0).any(), name


def test_mmoe_shape_equals_widths_of_its_layers(make_model: MakeModel) -> None:
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
def test_mmoe_with_one_kind_of_feature_runs_forward_and_backward(feature: dict[str, Any], values: list[Any]) -> None:
    schema = Schema.model_validate({"name": "s", "features": [feature], "tasks": [{"name": "click", "kind": "binary"}]})
    table = fill_features(pa.table({feature["name"]: values}), schema, {})
    fitter = EncoderFitter(schema)
    fitter.add(table)
    encoder = fitter.encoder()
    embeddings = Embeddings(schema, {name: mapping.size for name, mapping in encoder.id_mappings.items()})
    model = MMoE(ModelConfig(experts=2), 1, embeddings, DenseInputs(encoder.dense_size, encoder.bins))
    outputs = model(TorchBatch.from_numpy(encoder.encode(table)))
    assert outputs.shape == (3, 1)
    outputs.sum().backward()


def test_mmoe_initial_gradients_of_all_parameters_are_nonzero(make_model: MakeModel, inputs: TorchBatch) -> None:
    model = make_model().train()
    with torch.no_grad():
        model.gate.z.uniform_(-0.02, 0.02)
    model(inputs).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.ne(0).any(), name


# Initial outputs.


def test_mmoe_set_output_bias_makes_initial_outputs_equal_base_rates(
    make_model: MakeModel, inputs: TorchBatch, hand_schema: Schema
) -> None:
    model, rates = make_model(), torch.tensor([0.1, 0.75, 2.0, -1.0])
    with torch.no_grad():
        model.output.weight.zero_()
    model.set_output_bias(torch.cat([torch.logit(rates[:2]), rates[2:]]))
    probabilities = to_probabilities(model(inputs).detach().numpy(), hand_schema.tasks)
    np.testing.assert_allclose(probabilities, rates.expand(40, 4), rtol=1e-6)


def test_mmoe_set_output_bias_shifts_outputs_of_every_row(make_model: MakeModel, inputs: TorchBatch) -> None:
    model, shift = make_model(), torch.tensor([1.0, -2.0, 3.0, 0.0])
    before = model(inputs)
    model.set_output_bias(model.output.bias.detach().squeeze(1) + shift)
    torch.testing.assert_close(model(inputs), before + shift)


# Selected experts only.


def selected_experts(model: MMoE) -> list[int]:
    return model.gate.selection().experts_used


def test_mmoe_keep_experts_without_unselected_experts_keeps_outputs(make_model: MakeModel, inputs: TorchBatch) -> None:
    model = make_model()
    before = model(inputs)
    model.keep_experts(selected_experts(model))
    assert model.active.tolist() == [0, 1, 2, 3], "no task selected expert 4"
    assert len(model.experts.stack[0].weight) == 4
    torch.testing.assert_close(model(inputs), before, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("gate", [{"k": 2, "per_example": True}, {"k": 2}, {"kind": "softmax_selectors"}], ids=str)
def test_mmoe_keep_experts_of_restricted_gate_keeps_outputs(
    make_mmoe: MakeMMoE, inputs: TorchBatch, gate: dict[str, Any]
) -> None:
    model = make_mmoe(GATE_CONFIG.validate_python(gate))
    model.gate.restrict([1, 2, 4])
    before = model(inputs)
    model.keep_experts([1, 2, 4])
    assert model.positions([4, 1]) == [2, 0]
    torch.testing.assert_close(model(inputs), before, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_mmoe_keep_experts_after_forced_finalize_keeps_outputs(
    make_model: MakeModel, inputs: TorchBatch, seed: int
) -> None:
    model = make_model()
    torch.manual_seed(seed)
    with torch.no_grad():
        model.gate.z.uniform_(-0.3, 0.3)
    model.gate.finalize()
    before = model(inputs)
    model.keep_experts(selected_experts(model))
    torch.testing.assert_close(model(inputs), before, rtol=0.0, atol=1e-6)


def test_mmoe_keep_experts_selects_by_expert_number_not_position(
    make_model: MakeModel, inputs: TorchBatch, set_codes: Callable[[DSelectK, list[list[int]]], None]
) -> None:
    model = make_model()
    set_codes(model.gate, [[1, 3], [3, 1], [3, 3], [1, 1]])
    before = model(inputs)
    for kept in ([0, 1, 3], [1, 3]):
        model.keep_experts(kept)
        assert model.active.tolist() == kept
        torch.testing.assert_close(model(inputs), before, rtol=0.0, atol=1e-6)


def test_mmoe_state_dict_of_pruned_model_loads_into_new_model(make_model: MakeModel, inputs: TorchBatch) -> None:
    model, restored = make_model(), make_model()
    model.keep_experts(selected_experts(model))
    with torch.no_grad():
        for parameter in restored.parameters():
            parameter.zero_()
    restored.keep_experts(model.state_dict()["active"].tolist())
    restored.load_state_dict(model.state_dict())
    assert torch.equal(restored(inputs), model(inputs))


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.Adam])
def test_mmoe_training_selected_experts_only_equals_training_all(
    make_model: MakeModel,
    rows: Callable[[int, int], pa.Table],
    hand_encoder: Encoder,
    hand_schema: Schema,
    optimizer_class: type[torch.optim.Optimizer],
) -> None:
    dense = make_model().double().train()
    with torch.no_grad():
        dense.gate.z.mul_(0.3)  # Inside the fractional region.
    dense.gate.finalize()
    pruned = copy.deepcopy(dense)
    start = copy.deepcopy(dense.state_dict())
    kept = selected_experts(pruned)
    pruned.keep_experts(kept)
    assert len(kept) < 5

    for model in (dense, pruned):
        optimizer = optimizer_class(model.parameters(), lr=0.01)  # type: ignore[call-arg]
        for batch in range(6):
            table = rows(32, 100 + batch)
            inputs = TorchBatch.from_numpy(hand_encoder.encode(table))
            outputs = model(dataclasses.replace(inputs, dense=inputs.dense.double()))
            labels = torch.from_numpy(encode_labels(table, hand_schema.tasks)).double()
            loss = task_losses(outputs, labels, hand_schema.tasks).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    for name, value in pruned.state_dict().items():
        expected = dense.state_dict()[name]
        if name.startswith("experts."):
            expected = expected[kept]
        if name == "active":
            continue
        torch.testing.assert_close(value, expected, rtol=0.0, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")
    assert torch.equal(pruned.gate.z, start["gate.z"]), "the selection does not change"
    for part in ("gate.alpha", "experts.layers.0.weight", "towers.layers.0.weight", "output.bias"):
        assert not torch.allclose(dense.state_dict()[part], start[part], rtol=0.0, atol=1e-5), f"{part} was trained"
