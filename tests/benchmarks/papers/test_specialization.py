"""Tests of the experiment on expert specialization."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.papers.specialization import METHODS, ROWS, TRIALS, claims, experts_used, format_tables, plot, run
from tests.benchmarks.papers.image_files import write_cifar, write_digits


def test_experts_with_few_images_are_not_used() -> None:
    assert experts_used([[50, 0, 1, 0], [48, 0, 0, 1]]) == 3
    assert experts_used([[500, 0, 1, 0], [498, 0, 0, 1]]) == 1


def test_every_method_has_the_same_number_of_trials() -> None:
    assert len({len(TRIALS[method.penalty]) for method in METHODS.values()}) == 1


@pytest.mark.nightly(short="test_experts_with_few_images_are_not_used")
def test_cifar_is_measured_where_its_files_are(tmp_path: Path) -> None:
    for name in ("mnist", "fashion-mnist"):
        write_digits(tmp_path / name, {"train": 8, "t10k": 2})
    write_cifar(tmp_path / "cifar-10-batches-bin", 2)
    results = run(2, quick=True, raw=tmp_path)
    assert list(results["data"]) == ["MNIST", "Fashion-MNIST", "CIFAR-10"]
    for values in results["data"].values():
        assert tuple(values["methods"]) == ROWS
    assert "### CIFAR-10" in format_tables(results)
    assert any(claim.startswith("CIFAR-10") for claim, _ in claims(results))
    assert len(plot(results).axes) == 5  # Four panels and the scale of their colors.
