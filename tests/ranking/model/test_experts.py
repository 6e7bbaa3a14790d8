"""Stacked networks: n of them at once, each as if it were alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ranking.model.experts import StackedLinear, StackedMLP


def alone(stacked: StackedMLP, position: int) -> nn.Sequential:
    """One of the networks as plain torch modules with the same weights."""
    layers: list[nn.Module] = []
    for layer in stacked.stack:
        linear = nn.Linear(layer.weight.shape[1], layer.weight.shape[2])
        with torch.no_grad():
            linear.weight.copy_(layer.weight[position].T)
            linear.bias.copy_(layer.bias[position])
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("layers", [(4,), (6, 3), (5, 4, 3)])
@pytest.mark.parametrize("own_inputs", [False, True], ids=["one input for all", "an input each"])
def test_each_network_computes_what_it_would_alone(layers: tuple[int, ...], own_inputs: bool) -> None:
    stacked = StackedMLP(3, 5, layers)
    x = torch.randn(3, 7, 5) if own_inputs else torch.randn(7, 5)
    found = stacked(x)
    assert found.shape == (3, 7, layers[-1])
    for i in range(3):
        torch.testing.assert_close(found[i], alone(stacked, i)(x[i] if own_inputs else x))


def test_each_network_learns_as_it_would_alone() -> None:
    stacked, x = StackedMLP(3, 5, (4, 2)), torch.randn(7, 5)
    twins = [alone(stacked, i) for i in range(3)]
    stacked(x).square().sum().backward()
    for i, twin in enumerate(twins):
        twin(x).square().sum().backward()
        for layer, linear in zip(stacked.stack, (m for m in twin if isinstance(m, nn.Linear)), strict=True):
            assert layer.weight.grad is not None
            assert linear.weight.grad is not None
            torch.testing.assert_close(layer.weight.grad[i], linear.weight.grad.T)


def test_a_stacked_linear_is_affine() -> None:
    layer = StackedLinear(2, 3, 4)
    x = torch.randn(5, 3)
    expected = torch.stack([x @ layer.weight[i] + layer.bias[i] for i in range(2)])
    torch.testing.assert_close(layer(x), expected)


def test_weights_start_within_the_bounds_of_torch_linear() -> None:
    layer = StackedLinear(4, 100, 50)
    for parameter in (layer.weight, layer.bias):
        assert 0.09 < float(parameter.detach().abs().max()) <= 0.1


def test_networks_start_differently() -> None:
    weight = StackedLinear(2, 3, 4).weight
    assert not torch.equal(weight[0], weight[1])


def test_keep_leaves_the_networks_at_these_positions_in_this_order() -> None:
    stacked, x = StackedMLP(4, 5, (6, 3)), torch.randn(7, 5)
    before = stacked(x)
    stacked.keep([2, 0])
    torch.testing.assert_close(stacked(x), before[[2, 0]])
    assert all(len(parameter) == 2 for parameter in stacked.parameters())
    assert all(parameter.requires_grad for parameter in stacked.parameters())


def both_modes(stacked: StackedMLP, x: Tensor) -> tuple[Tensor, Tensor]:
    return stacked.train()(x), stacked.eval()(x)


def test_dropout_drops_units_in_training_only() -> None:
    stacked = StackedMLP(2, 5, (200,), dropout=0.5)
    with torch.no_grad():
        stacked.stack[0].bias.fill_(10.0)  # no unit is 0 by itself
    training, scoring = both_modes(stacked, torch.randn(4, 5))
    assert 0.3 < float((training == 0).float().mean()) < 0.7
    assert (scoring > 0).all()
    kept = training != 0
    torch.testing.assert_close(training[kept], 2 * scoring[kept])


def test_without_dropout_training_and_scoring_agree() -> None:
    training, scoring = both_modes(StackedMLP(2, 5, (8,)), torch.randn(4, 5))
    assert torch.equal(training, scoring)
