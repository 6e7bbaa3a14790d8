"""Mixtures of convolutional experts with one gate per image (Krishnamurthy et al., figures 1 and 5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.papers.convolutions import ConvolutionalExperts, Dense, Shape
from benchmarks.papers.images import CLASSES, Images
from ranking.gates.attentive import AttentiveGate
from ranking.gates.base import Gate
from ranking.gates.regularizers import importance, sample_similarity
from ranking.gates.softmax import Softmax
from ranking.model.gate_stats import entropy, mutual_information

CHUNK = 5_000
"""Images that are evaluated at a time."""

GateKind = Literal["softmax", "attentive"]
Penalty = Literal["importance", "similarity"]


@dataclass(frozen=True)
class Architecture:
    """Layers of the model for one data set (appendix B).

    Attributes:
        experts: number of experts.
        image: channels, height and width of an image.
        expert: layers of an expert before its output layer; the last one gives the keys of the attentive gate.
        gate: layers of the gate before its last hidden layer, which has as many units as that of an expert.
    """

    experts: int
    image: tuple[int, int, int]
    expert: Shape
    gate: Shape


@dataclass(frozen=True)
class Settings:
    """Settings of the training of a model.

    Attributes:
        rate: learning rate of Adam.
        weight: weight of the penalty: w_importance, or β_d.
    """

    rate: float
    weight: float = 0.0


@dataclass(frozen=True)
class Effort:
    """Amount of training: passes over the images, and images per step."""

    epochs: int
    batch: int


class Output(NamedTuple):
    """Output for a batch.

    Attributes:
        log_probabilities: of the classes [images, classes].
        weights: gate weights [images, experts].
    """

    log_probabilities: Tensor
    weights: Tensor


class ImageMixture(nn.Module):
    """Experts that return class distributions, and a gate that mixes them: ŷ = Σᵢ pᵢ oᵢ.

    Args:
        architecture: sizes.
        gate: kind of gate; None for a single expert.
        classes: number of classes.
    """

    def __init__(self, architecture: Architecture, gate: GateKind | None, classes: int = CLASSES) -> None:
        super().__init__()
        count = architecture.experts if gate else 1
        width = architecture.expert.dense[-1]
        self.experts = ConvolutionalExperts(count, architecture.image, architecture.expert)
        self.outputs = Dense(count, (width, classes))
        self.trunk: ConvolutionalExperts | None = None
        self.gate: Gate | None = None
        if gate:
            self.trunk = ConvolutionalExperts(1, architecture.image, architecture.gate)
            inputs = architecture.gate.dense[-1]
            self.gate = (
                AttentiveGate(1, count, inputs, width)
                if gate == "attentive"
                else Softmax(1, count, inputs, hidden=width)
            )

    def forward(self, pixels: Tensor) -> Output:
        """Return the class distribution and the gate weights."""
        hidden = self.experts(pixels)
        log_outputs = self.outputs(hidden).log_softmax(-1)
        if self.gate is None or self.trunk is None:
            return Output(log_outputs[0], torch.ones(len(pixels), 1))
        weights = self.gate(self.trunk(pixels)[0], hidden)[:, 0]
        log_weights = weights.clamp(min=1e-30).log()
        return Output(torch.logsumexp(log_outputs + log_weights.T[..., None], 0), weights)

    def fix_experts(self) -> None:
        """Exclude the experts from training."""
        self.experts.requires_grad_(False)
        self.outputs.requires_grad_(False)

    def distill(self) -> None:
        """Replace an attentive gate by its serving gate, and fix the experts (section 5.1)."""
        assert self.gate is not None
        self.gate = self.gate.serving_gate()
        self.fix_experts()


def train(
    model: ImageMixture,
    images: Images,
    settings: Settings,
    effort: Effort,
    penalty: Penalty | None = None,
    beta_s: float = 0.0,
) -> None:
    """Train a model with Adam on the negative log likelihood and a penalty on its gate.

    Args:
        model: model to train in place; parameters that do not require gradients stay as they are.
        images: training split.
        settings: learning rate and weight of the penalty.
        effort: amount of training.
        penalty: L_importance or L_s; None for no penalty.
        beta_s: β_s of L_s.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=settings.rate, fused=True)
    model.train()
    for batch in batches(images, effort):
        output = model(batch.pixels)
        loss = nn.functional.nll_loss(output.log_probabilities, batch.classes)
        weights = output.weights.unsqueeze(1)
        if penalty == "importance":
            loss = loss + settings.weight * importance(weights)
        elif penalty == "similarity":
            loss = loss + sample_similarity(weights, batch.pixels.flatten(1), beta_s, settings.weight)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def batches(images: Images, effort: Effort) -> Iterator[Images]:
    """Yield the batches of a training, in a new order for each pass."""
    for _ in range(effort.epochs):
        for rows in torch.randperm(len(images.classes)).split(effort.batch):
            yield images.rows(rows)


@torch.no_grad()
def measure(model: ImageMixture, images: Images) -> dict[str, Any]:
    """Return the error of a model, and how its gate distributes the images.

    Returns:
        ``error``; ``loss``: mean negative log likelihood in nats; ``information``: I(E;Y) (equation 3, appendix A),
        with the expert of the largest weight; ``sparsity`` H_s and ``utilization`` H_u (equations 1 and 2); entropies
        in bits; ``table``: images by class and expert of the largest weight.
    """
    model.eval()
    outputs = [model(images.pixels[start : start + CHUNK]) for start in range(0, len(images.classes), CHUNK)]
    log_probabilities, weights = (torch.cat(parts) for parts in zip(*outputs, strict=True))
    experts = weights.shape[1]
    cells = images.classes * experts + weights.argmax(1)
    table = torch.bincount(cells, minlength=log_probabilities.shape[1] * experts).view(-1, experts)
    return {
        "error": float((log_probabilities.argmax(1) != images.classes).double().mean()),
        "loss": float(nn.functional.nll_loss(log_probabilities, images.classes)),
        "information": mutual_information(table.double()),
        "sparsity": float(entropy(weights.double()).mean()),
        "utilization": float(entropy(weights.double().mean(0))),
        "table": table.tolist(),
    }
