"""Tests of the experiment on two overlapping images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.papers.images import Images, read_images
from benchmarks.papers.mixtures import Effort, Method, Split, evaluate, train
from benchmarks.papers.vision import EXPERTS, METHODS, TASKS, Vision, overlay
from tests.benchmarks.papers.image_files import write_digits


def splits(images: Images, count: int) -> dict[Split, tuple[torch.Tensor, torch.Tensor]]:
    return {"train": overlay(images, count, 0), "test": overlay(images, count, 1)}


@pytest.fixture
def digits(tmp_path: Path) -> Images:
    write_digits(tmp_path / "mnist", {"train": 100, "t10k": 10})
    return read_images(tmp_path, "mnist")["train"]


def test_items_are_at_the_top_left_and_the_bottom_right() -> None:
    images = Images(torch.stack([torch.full((1, 28, 28), value) for value in (0.2, 0.9)]), torch.tensor([3, 7]))
    pixels, classes = overlay(images, 50, seed=0)
    assert pixels.shape == (50, 36, 36)
    assert {tuple(pair) for pair in classes.tolist()} == {(3, 3), (3, 7), (7, 3), (7, 7)}
    brightness = {3: 51, 7: 230}
    for image, (first, second) in zip(pixels, classes.tolist(), strict=True):
        assert (image[:8, :28] == brightness[first]).all()
        assert (image[28:, 8:] == brightness[second]).all()
        assert (image[8:28, 8:28] == min(brightness[first] + brightness[second], 255)).all()
        assert not image[:8, 28:].any()
        assert not image[28:, :8].any()
    assert torch.equal(overlay(images, 50, seed=0)[0], pixels)


def test_experts_without_weight_are_not_evaluated(digits: Images) -> None:
    problems = Vision(range(1), splits(digits, 40))
    weights = torch.zeros(TASKS, EXPERTS)
    weights[0, 2] = weights[1, 5] = 1
    rows = torch.arange(40)
    expected = problems.losses(weights, "test", rows)
    assert not problems.evaluated  # Only training counts.
    with torch.no_grad():
        for parameter in problems.experts.parameters():
            parameter[[0, 1, 3, 4, 6, 7]] = torch.nan
    assert torch.equal(problems.losses(weights, "train", rows).isnan(), torch.tensor([False, False]))
    assert problems.evaluated == 2 * 40
    assert torch.equal(problems.losses(weights, "test", rows), expected)
    by_example = weights.expand(40, -1, -1)
    assert torch.allclose(problems.losses(by_example, "test", rows), expected, atol=1e-6)


@pytest.mark.nightly(short="test_experts_without_weight_are_not_evaluated")
def test_training_raises_the_accuracy_of_both_tasks(digits: Images) -> None:
    data = splits(digits, 200)
    method = Method("x", METHODS[0].gate, 0.01, 0.003, METHODS[0].convergence)
    problems = Vision(range(1), data)
    fit = train(problems, method, Effort(steps=40, batch=32), seed=0)
    assert all(1 <= len(fit.experts(task)) <= 2 for task in range(TASKS))
    assert fit.binary_at is not None
    assert fit.binary_at <= 0.6
    assert (evaluate(problems, fit, "train", problems.accuracies) > 0.25).all()  # By chance: 0.1.
