"""The frozen graph as a few wide products, for a processor that is faster the more it gets at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

Layer = tuple[Tensor, Tensor]


class FusedMoE(nn.Module):
    """Joined halves in, outputs of some tasks out; only what these tasks chose is there.

    Experts are stacked, and so are towers: a layer is one product. A task mixes the experts that it chose and sees no
    other, not even 0 times infinity.

    Args:
        experts: layers of each, weights [inputs, outputs] and biases [outputs]; all experts have the same shape.
        towers: layers of each task's.
        chosen: of each task: position in ``experts`` → weight.
        shared: columns of the first layer's input that the candidates of a request share.
        items: the other columns.
    """

    shared: Tensor
    items: Tensor
    bias: Tensor
    which: Tensor
    weights: Tensor

    def __init__(
        self,
        experts: Sequence[Sequence[Layer]],
        towers: Sequence[Sequence[Layer]],
        chosen: Sequence[Mapping[int, float]],
        shared: Sequence[int],
        items: Sequence[int],
    ) -> None:
        super().__init__()
        first, *others = _stacked(experts)
        weight, bias = first
        self._width = weight.shape[2]
        wide = weight.permute(1, 0, 2).flatten(1)  # [inputs, experts · width]
        self.register_buffer("shared", wide[list(shared)].float())
        self.register_buffer("items", wide[list(items)].float())
        self.register_buffer("bias", bias.flatten().float())
        self.experts = nn.ModuleList(_Layer(*layer) for layer in others)
        self.towers = nn.ModuleList(_Layer(*layer) for layer in _stacked(towers))
        most = max(map(len, chosen))
        # a task with fewer experts than others shares the weight of its first out among copies of it
        padded = [
            [(e, w / (1 + most - len(c))) for e, w in c[:1]] * (1 + most - len(c)) + c[1:]
            for c in (list(of_task.items()) for of_task in chosen)
        ]
        self.register_buffer("which", torch.tensor([[expert for expert, _ in c] for c in padded]))
        self.register_buffer("weights", torch.tensor([[weight for _, weight in c] for c in padded])[:, :, None, None])

    def forward(self, shared: Tensor, items: Tensor, request: Tensor) -> Tensor:
        """Outputs [candidates, tasks] before calibration.

        Args:
            shared: [requests, width].
            items: [candidates, width].
            request: row of ``shared`` of each candidate [candidates] int64.
        """
        once = torch.addmm(self.bias, shared, self.shared)
        first = torch.addmm(once[request], items, self.items).relu()
        hidden = first.view(len(items), -1, self._width).transpose(0, 1)
        for layer in self.experts:
            hidden = layer(hidden).relu()
        mixed = (hidden[self.which] * self.weights).sum(1)
        *before, last = self.towers
        for layer in before:
            mixed = layer(mixed).relu()
        outputs: Tensor = last(mixed).squeeze(-1).T
        return outputs


class _Layer(nn.Module):
    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.float())
        self.register_buffer("bias", bias.unsqueeze(1).float())

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


def _stacked(networks: Sequence[Sequence[Layer]]) -> list[Layer]:
    """Networks of one shape, layer by layer: weights [networks, inputs, outputs] and biases [networks, outputs]."""
    layers = (zip(*layer, strict=True) for layer in zip(*networks, strict=True))
    return [(torch.stack(weights), torch.stack(biases)) for weights, biases in layers]
