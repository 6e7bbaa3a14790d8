"""Tests of the convolutional experts against torch.nn.functional."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.papers.convolutions import ConvolutionalExperts, Shape

IMAGE = (2, 13, 12)


def reference(experts: ConvolutionalExperts, images: Tensor, expert: int) -> Tensor:
    x = images
    for filters, biases in zip(experts.filters, experts.filter_biases, strict=True):
        padding = filters.shape[-1] // 2 if experts.shape.padded else 0
        x = F.relu(F.max_pool2d(F.conv2d(x, filters[expert], biases[expert].flatten(), padding=padding), 2))
    x = x.flatten(1)
    for weight, bias in zip(experts.dense.weights, experts.dense.biases, strict=True):
        x = F.relu(x @ weight[expert] + bias[expert])
    return x


@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_are_those_of_conv2d_and_max_pool2d(padded: bool) -> None:
    torch.manual_seed(0)
    experts = ConvolutionalExperts(3, IMAGE, Shape(((4, 3), (5, 3)), (7, 6), padded)).double()
    images = torch.randint(0, 3, (4, *IMAGE)).double()  # Equal pixels make equal maxima in a window.
    expected = torch.stack([reference(experts, images, expert) for expert in range(3)])
    outputs = experts(images)
    assert torch.allclose(outputs, expected)
    for part in (slice(None), [2, 0], [1]):
        on_gpu = experts.convolved_on_gpu(images, part)
        assert torch.allclose(on_gpu, experts.convolved_on_cpu(images, part))
    direction = torch.randn_like(expected)
    parameters = list(experts.parameters())
    gradients = torch.autograd.grad((outputs * direction).sum(), parameters)
    expected_gradients = torch.autograd.grad((expected * direction).sum(), parameters)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        assert torch.allclose(gradient, expected_gradient)


def test_only_the_chosen_experts_are_evaluated() -> None:
    experts = ConvolutionalExperts(3, IMAGE, Shape(((4, 3),), (6,)))
    images = torch.rand(5, *IMAGE)
    expected = experts(images)[[2, 0]]
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter[1] = torch.nan
    assert torch.allclose(experts(images, [2, 0]), expected)


def test_operations_are_those_of_the_layers() -> None:
    experts = ConvolutionalExperts(3, (1, 28, 28), Shape(((1, 3),), (5, 32)))
    convolution = 26 * 26 * 9
    assert experts.flops == 2 * (convolution + 13 * 13 * 5 + 5 * 32)
