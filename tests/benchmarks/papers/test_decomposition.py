"""Tests of the experiment on task decompositions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.papers.decomposition import PROBLEMS, _combine, _train_experts_on_pairs, run
from benchmarks.papers.gated_images import Effort, ImageMixture, Settings
from benchmarks.papers.images import read_images
from ranking.errors import LogError
from tests.benchmarks.papers.image_files import write_digits


def test_pairs_contain_every_class_once() -> None:
    for problem in PROBLEMS:
        assert sorted(c for pair in problem.pairs for c in pair) == list(range(2 * problem.architecture.experts))


def test_combined_data_set_has_six_classes_of_each(tmp_path: Path) -> None:
    for name, rows in (("mnist", 40), ("fashion-mnist", 60)):
        write_digits(tmp_path / name, {"train": rows, "t10k": 10})
    digits, fashion = (read_images(tmp_path, name)["train"] for name in ("mnist", "fashion-mnist"))
    both = _combine(fashion, digits)
    assert torch.bincount(both.classes).tolist() == [6] * 6 + [4] * 6
    nine = both.pixels[both.classes == 11]
    assert {tuple(image.flatten().tolist()) for image in nine} == {
        tuple(image.flatten().tolist()) for image in digits.pixels[digits.classes == 9]
    }


def test_expert_learns_its_own_classes_only(tmp_path: Path) -> None:
    write_digits(tmp_path / "mnist", {"train": 500, "t10k": 10})
    images = read_images(tmp_path, "mnist")["train"]
    torch.manual_seed(0)
    problem = PROBLEMS[0]
    model = ImageMixture(problem.architecture, "softmax")
    _train_experts_on_pairs(model, problem.pairs, images, Settings(0.01), Effort(epochs=4, batch=50))
    with torch.no_grad():
        predicted = model.outputs(model.experts(images.pixels)).argmax(-1)
    for expert, pair in enumerate(problem.pairs):
        assert set(predicted[expert].tolist()) <= set(pair)
        own = torch.isin(images.classes, torch.tensor(pair))
        assert (predicted[expert][own] == images.classes[own]).double().mean() >= 0.5


def test_both_data_sets_are_needed(tmp_path: Path) -> None:
    write_digits(tmp_path / "mnist", {"train": 8, "t10k": 2})
    with pytest.raises(LogError, match="fashion-mnist: there is no such folder; the Debian package"):
        run(2, quick=True, raw=tmp_path)
