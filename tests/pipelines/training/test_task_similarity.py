"""Tests of the similarity of tasks, and of gates that start from it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pipelines.config.config import Config, load_config
from pipelines.datasets.conflict import TASKS, generate
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder
from pipelines.training.distributed import DistContext
from pipelines.training.task_similarity import group_tasks, measure_similarity

INPUTS, BATCH, BATCHES = 4, 500, 10
WITHOUT_EVALUATION = ["evaluation.baselines=[]", "evaluation.bootstrap=0"]


def batches(
    x: npt.NDArray[np.float64], labels: npt.NDArray[np.float64], weights: npt.NDArray[np.float64] | None = None
) -> list[tuple[Tensor, ...]]:
    """Return the rows as batches of inputs, labels [rows, tasks] and sample weights [rows]."""
    weights = np.ones(len(x)) if weights is None else weights
    return list(zip(*(torch.tensor(values).float().split(BATCH) for values in (x, labels, weights)), strict=True))


@pytest.fixture(scope="module")
def inputs() -> npt.NDArray[np.float64]:
    """Independent standard-normal inputs."""
    return np.random.default_rng(0).standard_normal((BATCH * BATCHES, INPUTS))


def similarity(
    x: npt.NDArray[np.float64], *labels: npt.NDArray[np.float64], weights: npt.NDArray[np.float64] | None = None
) -> Tensor:
    return measure_similarity(batches(x, np.stack(labels, 1), weights), DistContext())


def noisy(values: npt.NDArray[np.float64], seed: int) -> npt.NDArray[np.float64]:
    """Return values of which noise makes up half of the variance."""
    return values / values.std() + np.random.default_rng(seed).standard_normal(len(values))


def test_tasks_of_the_same_function_are_alike_and_unrelated_ones_are_not(inputs: npt.NDArray[np.float64]) -> None:
    """The functions are products, which do not correlate with any input alone; the noise of each label is its own."""
    first, second = inputs[:, 0] * inputs[:, 1], inputs[:, 2] * inputs[:, 3]
    found = similarity(inputs, noisy(first, 1), noisy(first, 2), noisy(second, 3), noisy(first + second, 4))
    assert torch.equal(found, found.T)
    assert found.diagonal().tolist() == pytest.approx([1.0] * 4)
    assert found[0, 1] > 0.9
    assert found[0, 2] < 0.15
    assert found[0, 3].item() == pytest.approx(0.5**0.5, abs=0.1)
    assert found[2, 3].item() == pytest.approx(0.5**0.5, abs=0.1)


def test_units_signs_and_base_rates_of_labels_do_not_matter(inputs: npt.NDArray[np.float64]) -> None:
    """Opposite tasks need the same function of the inputs."""
    value = noisy(inputs[:, 0] * inputs[:, 1], 1)
    rare = (noisy(inputs[:, 0] * inputs[:, 1], 2) > 2.0).astype(np.float64)
    found = similarity(inputs, value, 1e4 * value + 1e5, -value, rare)
    assert found[0, :3].tolist() == pytest.approx([1.0, 1.0, 1.0], abs=0.01)
    assert found[0, 3] > 0.6, "the probability of a rare label is not linear in the value"


def test_correlated_noise_of_two_labels_is_not_similarity(inputs: npt.NDArray[np.float64]) -> None:
    noise = 3.0 * np.random.default_rng(1).standard_normal(len(inputs))
    found = similarity(inputs, noise + inputs[:, 0] * inputs[:, 1], noise + inputs[:, 2] * inputs[:, 3])
    assert found[0, 1] < 0.6
    assert np.corrcoef(noise + inputs[:, 0], noise + inputs[:, 1])[0, 1] > 0.8


def test_similarity_of_tasks_with_too_few_labels_is_unknown(inputs: npt.NDArray[np.float64]) -> None:
    """They start with the largest group, which is better than alone on few labels; masked labels do not count."""
    value = noisy(inputs[:, 0], 1)
    few, none = np.full(len(inputs), np.nan), np.full(len(inputs), np.nan)
    few[::200] = np.random.default_rng(2).standard_normal(25)
    constant = np.zeros(len(inputs))
    found = similarity(inputs, value, few, none, constant)
    assert found.isfinite().tolist() == [[True, False, False, False], *[[False] * 4] * 3]
    assert group_tasks(found, 4) == [0, 0, 0, 0]


def test_rows_without_weight_do_not_count(inputs: npt.NDArray[np.float64]) -> None:
    half = np.arange(len(inputs)) % 2
    first, second = inputs[:, 0] * inputs[:, 1], inputs[:, 2] * inputs[:, 3]
    mixed = noisy(np.where(half == 1, first, second), 1)
    weighted = similarity(inputs, noisy(first, 2), mixed, weights=half.astype(np.float64))
    assert weighted[0, 1] > similarity(inputs, noisy(first, 2), mixed)[0, 1] + 0.1


@pytest.mark.parametrize("scale", [1e-6, 1e9])
def test_scale_of_the_weights_does_not_matter(inputs: npt.NDArray[np.float64], scale: float) -> None:
    """The rule for tasks with little signal counts rows, not the sum of their weights."""
    weak = 0.02 * inputs[:, 2] + np.random.default_rng(3).standard_normal(len(inputs))
    labels = noisy(inputs[:, 0], 1), noisy(inputs[:, 0] + inputs[:, 1], 2), weak
    weights = np.random.default_rng(4).uniform(0.5, 1.5, len(inputs))
    expected = similarity(inputs, *labels, weights=weights)
    assert expected.isnan().any()
    found = similarity(inputs, *labels, weights=scale * weights)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3, equal_nan=True)


def test_ranks_measure_what_one_process_does(inputs: npt.NDArray[np.float64]) -> None:
    labels = np.stack([noisy(inputs[:, 0], 1), noisy(inputs[:, 0] + inputs[:, 1], 2)], 1)
    parts = batches(inputs, labels)
    ranks = [parts[:4], parts[4:8]]  # the halves are the even and the odd batches

    class Collected(DistContext):
        """Context that keeps what a rank would add, and adds what the others have."""

        others: list[Tensor] = []  # noqa: RUF012

        def sum(self, values: Tensor) -> Tensor:
            self.others.append(values)
            return values

    class Added(DistContext):
        def sum(self, values: Tensor) -> Tensor:
            return values + Collected.others.pop(0)

    measure_similarity(ranks[0], Collected())
    found = measure_similarity(ranks[1], Added())
    torch.testing.assert_close(found, measure_similarity(parts[:8], DistContext()), rtol=1e-5, atol=1e-5)


@given(st.integers(2, 12), st.integers(1, 12), st.integers(0, 1_000))
def test_groups_are_numbered_by_their_first_task_and_not_too_many(tasks: int, most: int, seed: int) -> None:
    values = torch.rand(tasks, tasks, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    groups = group_tasks(((values + values.T) / 2).fill_diagonal_(1.0), most)
    assert len(groups) == tasks
    assert list(dict.fromkeys(groups)) == list(range(len(set(groups))))
    assert len(set(groups)) <= most


def test_groups_are_those_that_are_alike_on_average() -> None:
    alike = torch.tensor([[1, 0.1, 0.8, 0.7], [0.1, 1, 0.2, 0.1], [0.8, 0.2, 1, 0.55], [0.7, 0.1, 0.55, 1]]).double()
    assert group_tasks(alike, 4) == [0, 1, 0, 0]
    assert group_tasks(alike, 1) == [0, 0, 0, 0]
    assert group_tasks(torch.eye(3, dtype=torch.float64), 3) == [0, 1, 2]
    unknown = torch.full((5, 5), torch.nan, dtype=torch.float64)
    unknown[1:, 1:] = alike
    assert group_tasks(unknown, 4) == [0, 0, 1, 0, 0]


@pytest.fixture(scope="module")
def conflict(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a log whose groups of tasks have nothing in common; read only."""
    folder = tmp_path_factory.mktemp("conflict")
    generate(folder, 1.0, 20_000, seed=1)
    return folder / "ranker.toml"


def trained(config: Path, folder: Path, *settings: str) -> tuple[Config, RunFolder]:
    resolved = load_config(config, [*WITHOUT_EVALUATION, *settings])
    return resolved, train(resolved, folder)


@pytest.mark.nightly(short="test_groups_are_those_that_are_alike_on_average")
def test_training_finds_the_groups_and_each_selects_experts_of_its_own(conflict: Path, tmp_path: Path) -> None:
    """Protects what the start is for: nobody tells the training which tasks belong together."""
    config, run = trained(conflict, tmp_path / "run")
    record = json.loads(run.task_similarity.read_text())
    assert record["tasks"] == list(TASKS)
    groups: list[list[str]] = record["groups"]
    assert sum(len({name[0] for name in group}) == 1 for group in groups) >= 7
    weights = run.load_selection()["tasks"]
    for group in groups:
        others = {e for name in TASKS if name not in group for e in weights[name]}
        assert all(len(weights[name]) <= config.model.gate.k for name in group)
        assert sum(not others & weights[name].keys() for name in group) >= len(group) - 1


@pytest.mark.parametrize(
    "setting", ['model.gate.start="random"', pytest.param("model.gate.experts_budget=3", marks=pytest.mark.nightly)]
)
def test_start_is_random_on_request_and_if_the_budget_has_no_room(conflict: Path, tmp_path: Path, setting: str) -> None:
    settings = ["model.expert_layers=[4]", "training.batch_size=2048"]
    _, run = trained(conflict, tmp_path / "run", setting, *settings)
    assert not run.task_similarity.exists()
