"""Convolutional networks of equal shape, evaluated together: the experts of the papers' experiments with images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Layers of a network. All have ReLU activations; a convolution is followed by max pooling of 2 × 2.

    Attributes:
        convolutions: (filters, kernel size) of each convolution with stride 1.
        dense: units of each dense layer after the convolutions.
        padded: whether convolutions keep the size of the image.
    """

    convolutions: tuple[tuple[int, int], ...]
    dense: tuple[int, ...]
    padded: bool = False


class ConvolutionalExperts(nn.Module):
    """Networks of one shape over the same images.

    Parameters are drawn uniformly from ±1/√(inputs of a unit), PyTorch's default.

    Args:
        experts: number of networks.
        image: channels, height and width of an image.
        shape: layers of each network.

    Attributes:
        flops: floating-point operations of one network for one image, multiplications and additions of the layers.
    """

    def __init__(self, experts: int, image: Sequence[int], shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.filters, self.filter_biases = nn.ParameterList(), nn.ParameterList()
        self.flops = 0
        channels, height, width = image
        for filters, kernel in shape.convolutions:
            inputs = channels * kernel * kernel
            self.filters.append(uniform(inputs, experts, filters, channels, kernel, kernel))
            self.filter_biases.append(uniform(inputs, experts, filters, 1, 1, 1))
            if not shape.padded:
                height, width = height - kernel + 1, width - kernel + 1
            self.flops += 2 * inputs * filters * height * width
            channels, height, width = filters, height // 2, width // 2
        self.dense = Dense(experts, (channels * height * width, *shape.dense))
        self.flops += self.dense.flops

    def forward(self, images: Tensor, chosen: Sequence[int] | None = None) -> Tensor:
        """Return the last layer's outputs [networks, images, units].

        Args:
            images: [images, channels, height, width].
            chosen: networks to evaluate, in the order of the result; default: all.
        """
        part = slice(None) if chosen is None else list(chosen)
        convolved = self.convolved_on_gpu(images, part) if images.is_cuda else self.convolved_on_cpu(images, part)
        return torch.relu(self.dense(convolved, part))

    def convolved_on_cpu(self, images: Tensor, part: slice | list[int]) -> Tensor:
        """Return the outputs of the convolutions [networks, images, width]; see ``_convolve``."""
        x = images.permute(1, 2, 3, 0).contiguous().unsqueeze(0)  # [networks or 1, channels, height, width, images]
        for filters, biases in zip(self.filters, self.filter_biases, strict=True):
            x = torch.relu(_MaxPool.apply(_convolve(x, filters[part], self.shape.padded)) + biases[part])
        return x.flatten(1, 3).mT

    def convolved_on_gpu(self, images: Tensor, part: slice | list[int]) -> Tensor:
        """Return the outputs of the convolutions [networks, images, width], by ``conv2d`` with a group per network."""
        x = images
        for layer, (filters, biases) in enumerate(zip(self.filters, self.filter_biases, strict=True)):
            networks, kernel = len(biases[part]), filters.shape[-1]
            x = F.conv2d(
                x,
                filters[part].flatten(0, 1),
                biases[part].flatten(),
                padding=kernel // 2 if self.shape.padded else 0,
                groups=networks if layer else 1,
            )
            x = F.max_pool2d(torch.relu(x), 2)
        return x.unflatten(1, (networks, -1)).flatten(2).transpose(0, 1)


def _convolve(x: Tensor, filters: Tensor, padded: bool) -> Tensor:
    """Convolve images with the filters of each network, as one matrix product per network.

    With the images in the last dimension all other operations read consecutive memory. With a few filters and one
    channel, a training step takes less than half the time of ``conv2d`` and ``max_pool2d`` on a CPU.

    Args:
        x: [networks, channels, height, width, images], or one network's input for all.
        filters: [networks, filters, channels, kernel, kernel].
        padded: whether the result has the size of the input.
    """
    kernel = filters.shape[-1]
    if padded:
        x = F.pad(x, (0, 0, *[kernel // 2] * 4))
    patches = x.unfold(2, kernel, 1).unfold(3, kernel, 1).permute(0, 1, 5, 6, 2, 3, 4)
    products = filters.flatten(2) @ patches.flatten(4).flatten(1, 3)
    return products.unflatten(-1, patches.shape[4:])


class _MaxPool(torch.autograd.Function):
    """Maximum over windows of 2 × 2; the gradient goes to the first maximum, as in ``max_pool2d``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        a, b, c, d = _windows(x)
        maximum = torch.maximum(torch.maximum(a, b), torch.maximum(c, d))
        ctx.save_for_backward(x, maximum)
        return maximum

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x, maximum = ctx.saved_tensors
        result, rest = torch.zeros_like(x), gradient.clone()
        for values, received in zip(_windows(x), _windows(result), strict=True):
            is_maximum = (values - maximum).sign_().add_(1)  # 1 or 0; comparisons are slower.
            rest -= torch.mul(rest, is_maximum, out=received)
        return result


def _windows(x: Tensor) -> list[Tensor]:
    """Return each of the four positions of all windows [..., height // 2, width // 2, images]."""
    height, width = x.shape[-3] // 2 * 2, x.shape[-2] // 2 * 2
    return [x[..., row:height:2, column:width:2, :] for row in (0, 1) for column in (0, 1)]


class Dense(nn.Module):
    """Stacks of dense layers, one stack per network, with ReLU activations between layers.

    Args:
        networks: number of stacks.
        units: width of the input and of each layer.

    Attributes:
        flops: see ``ConvolutionalExperts``.
    """

    def __init__(self, networks: int, units: Sequence[int]) -> None:
        super().__init__()
        pairs = list(pairwise(units))
        self.weights = nn.ParameterList(uniform(inputs, networks, inputs, outputs) for inputs, outputs in pairs)
        self.biases = nn.ParameterList(uniform(inputs, networks, 1, outputs) for inputs, outputs in pairs)
        self.flops = sum(2 * inputs * outputs for inputs, outputs in pairs)

    def forward(self, x: Tensor, part: slice | list[int] = slice(None)) -> Tensor:
        """Return the outputs of the last layer, without its activation [networks, rows, units].

        Args:
            x: inputs [networks, rows, width].
            part: the stacks that these inputs are for.
        """
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias[part], torch.relu(x) if layer else x, weight[part])
        return x


def uniform(inputs: int, *size: int) -> nn.Parameter:
    """Draw a parameter uniformly from ±1/√inputs."""
    spread = 1 / math.sqrt(inputs)
    return nn.Parameter(torch.empty(size).uniform_(-spread, spread))
