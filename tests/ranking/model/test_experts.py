"""Stacked networks: n networks in one module, each equal to a separate network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ranking.model.experts import StackedLinear, StackedMLP


def separate_network(stacked: StackedMLP, position: int) -> nn.Sequential:
    """Return one of the networks as plain torch modules with the same weights."""
    layers: list[nn.Module] = []
    for layer in stacked.stack:
        linear = nn.Linear(layer.weight.shape[1], layer.weight.shape[2])
        with torch.no_grad():
            linear.weight.copy_(layer.weight[position].T)
            linear.bias.copy_(layer.bias[position])
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("layers", [(4,), (6, 3), (5, 4, 3)])
@pytest.mark.parametrize("separate_inputs", [False, True], ids=["shared input", "separate inputs"])
def test_stacked_mlp_outputs_equal_those_of_separate_networks(layers: tuple[int, ...], separate_inputs: bool) -> None:
    stacked = StackedMLP(3, 5, layers)
    x = torch.randn(3, 7, 5) if separate_inputs else torch.randn(7, 5)
    outputs = stacked(x)
    assert outputs.shape == (3, 7, layers[-1])
    for i in range(3):
        torch.testing.assert_close(outputs[i], separate_network(stacked, i)(x[i] if separate_inputs else x))


def test_stacked_mlp_gradients_equal_those_of_separate_networks() -> None:
    stacked, x = StackedMLP(3, 5, (4, 2)), torch.randn(7, 5)
    networks = [separate_network(stacked, i) for i in range(3)]
    stacked(x).square().sum().backward()
    for i, network in enumerate(networks):
        network(x).square().sum().backward()
        for layer, linear in zip(stacked.stack, (m for m in network if isinstance(m, nn.Linear)), strict=True):
            assert layer.weight.grad is not None
            assert linear.weight.grad is not None
            torch.testing.assert_close(layer.weight.grad[i], linear.weight.grad.T)


def test_stacked_linear_equals_separate_affine_maps() -> None:
    layer = StackedLinear(2, 3, 4)
    x = torch.randn(5, 3)
    expected = torch.stack([x @ layer.weight[i] + layer.bias[i] for i in range(2)])
    torch.testing.assert_close(layer(x), expected)


def test_stacked_linear_initial_weights_lie_within_bounds_of_torch_linear() -> None:
    layer = StackedLinear(4, 100, 50)
    for parameter in (layer.weight, layer.bias):
        assert 0.09 < float(parameter.detach().abs().max()) <= 0.1


def test_stacked_linear_initial_weights_differ_between_networks() -> None:
    weight = StackedLinear(2, 3, 4).weight
    assert not torch.equal(weight[0], weight[1])


def test_stacked_mlp_keep_selects_networks_by_position_in_order() -> None:
    stacked, x = StackedMLP(4, 5, (6, 3)), torch.randn(7, 5)
    before = stacked(x)
    stacked.keep([2, 0])
    torch.testing.assert_close(stacked(x), before[[2, 0]])
    assert all(len(parameter) == 2 for parameter in stacked.parameters())
    assert all(parameter.requires_grad for parameter in stacked.parameters())


def train_and_eval_outputs(stacked: StackedMLP, x: Tensor) -> tuple[Tensor, Tensor]:
    return stacked.train()(x), stacked.eval()(x)


def test_stacked_mlp_dropout_drops_units_in_training_only() -> None:
    stacked = StackedMLP(2, 5, (200,), dropout=0.5)
    with torch.no_grad():
        stacked.stack[0].bias.fill_(10.0)  # No unit is 0 without dropout.
    trained, evaluated = train_and_eval_outputs(stacked, torch.randn(4, 5))
    assert 0.3 < float((trained == 0).float().mean()) < 0.7
    assert (evaluated > 0).all()
    kept = trained != 0
    torch.testing.assert_close(trained[kept], 2 * evaluated[kept])


def test_stacked_mlp_without_dropout_is_equal_in_training_and_eval_mode() -> None:
    trained, evaluated = train_and_eval_outputs(StackedMLP(2, 5, (8,)), torch.randn(4, 5))
    assert torch.equal(trained, evaluated)
