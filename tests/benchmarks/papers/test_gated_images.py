"""Tests of the mixtures of convolutional experts."""

from __future__ import annotations

import pytest
import torch

from benchmarks.papers.gated_images import Effort, ImageMixture, Settings, measure, train
from benchmarks.papers.images import Images, read_images
from benchmarks.papers.specialization import MNIST
from tests.benchmarks.papers.image_files import write_digits

EFFORT = Effort(epochs=4, batch=50)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Images:
    folder = tmp_path_factory.mktemp("images")
    write_digits(folder / "mnist", {"train": 1_000, "t10k": 10})
    return read_images(folder, "mnist")["train"]


def fitted(digits: Images, gate: str | None, penalty: str | None = None, weight: float = 0.0) -> ImageMixture:
    torch.manual_seed(0)
    model = ImageMixture(MNIST.architecture, gate)  # type: ignore[arg-type]
    train(model, digits, Settings(0.01, weight), EFFORT, penalty, 1e-5)  # type: ignore[arg-type]
    return model


@pytest.mark.parametrize("gate", ["softmax", "attentive"])
def test_output_is_the_mixture_of_the_experts_distributions(digits: Images, gate: str) -> None:
    model = ImageMixture(MNIST.architecture, gate)  # type: ignore[arg-type]
    output = model(digits.pixels[:20])
    distributions = model.outputs(model.experts(digits.pixels[:20])).softmax(-1)
    mixed = torch.einsum("be,ebc->bc", output.weights, distributions)
    assert torch.allclose(output.log_probabilities.exp(), mixed, atol=1e-6)
    assert torch.allclose(output.weights.sum(1), torch.ones(20))


@pytest.mark.parametrize("gate", [None, "softmax", "attentive"])
def test_training_lowers_the_error(digits: Images, gate: str | None) -> None:
    assert measure(fitted(digits, gate), digits)["error"] < 0.6  # By chance: 0.9.


@pytest.mark.nightly(short="test_training_lowers_the_error")
def test_importance_penalty_raises_the_utilization(digits: Images) -> None:
    free, balanced = (fitted(digits, "softmax", "importance", weight) for weight in (0.0, 10.0))
    assert measure(balanced, digits)["utilization"] > measure(free, digits)["utilization"]
    assert measure(balanced, digits)["utilization"] > 0.95 * torch.tensor(5.0).log2()


@pytest.mark.nightly(short="test_training_lowers_the_error")
def test_distilling_fixes_the_experts_and_trains_the_gate(digits: Images) -> None:
    torch.manual_seed(0)
    model = ImageMixture(MNIST.architecture, "attentive")
    train(model, digits, Settings(0.002), EFFORT)
    model.distill()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    error = measure(model, digits)["error"]
    train(model, digits, Settings(0.01), EFFORT)
    changed = {name.split(".")[0] for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"trunk", "gate"}
    assert measure(model, digits)["error"] < error


def test_measures_of_a_known_routing() -> None:
    images = Images(torch.rand(40, 1, 28, 28), torch.arange(40) % 10)
    model = ImageMixture(MNIST.architecture, "softmax")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        assert model.gate is not None
        model.gate.bias[0] = torch.tensor([100.0, 0.0, 0.0, 0.0, 0.0])
        model.outputs.biases[0][:, 0, 3] = 5.0
    values = measure(model, images)
    assert values["error"] == pytest.approx(0.9)  # Every image is a 3.
    assert (values["information"], values["sparsity"], values["utilization"]) == pytest.approx((0, 0, 0), abs=1e-12)
    assert values["table"] == [[4, 0, 0, 0, 0]] * 10
