"""Tests of the generator of logs with conflicting groups of tasks."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipelines.cli.main import main
from pipelines.config.config import load_config
from pipelines.datasets.conflict import GROUPS, INPUTS, RATES, TASKS, TASKS_PER_GROUP, generate
from pipelines.jobs.train import train
from ranking.model.experts import StackedLinear, StackedMLP

Array = npt.NDArray[np.float64]


def columns(folder: Path, names: list[str]) -> Array:
    table = pq.read_table(folder / "log")
    return np.stack([table[name].to_numpy() for name in names], 1).astype(np.float64)


def signals(folder: Path) -> Array:
    """Return the standardized logits [rows, tasks]."""
    truth = columns(folder, [f"true_{name}" for name in TASKS])
    logits = np.log(truth / (1 - truth))
    return (logits - logits.mean(0)) / logits.std(0)


def test_same_seed_gives_the_same_files_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        generate(tmp_path / name, 0.5, 500, seed)
    first, second, other = (pq.read_table(tmp_path / name / "log") for name in "abc")
    assert first.equals(second)
    assert not first.equals(other)
    assert len({(tmp_path / name / "ranker.toml").read_text() for name in "abc"}) == 1


def test_labels_have_the_base_rates_and_follow_the_true_probabilities(tmp_path: Path) -> None:
    generate(tmp_path / "log", 0.7, 20_000)
    labels, truth = columns(tmp_path / "log", list(TASKS)), columns(tmp_path / "log", [f"true_{t}" for t in TASKS])
    assert set(np.unique(labels)) == {0, 1}
    for position in range(len(TASKS)):
        assert truth[:, position].mean() == pytest.approx(RATES[position % 2], abs=1e-6)
        for fifth in np.array_split(np.argsort(truth[:, position]), 5):
            deviation = np.sqrt((truth[fifth, position] * (1 - truth[fifth, position])).sum())
            assert abs(labels[fifth, position].sum() - truth[fifth, position].sum()) < 5 * deviation + 1


@pytest.mark.parametrize("degree", [0.0, 0.5, 1.0])
def test_conflict_is_the_share_that_groups_do_not_have_in_common(tmp_path: Path, degree: float) -> None:
    """Within a group, logits correlate also in full conflict; across groups, only by the rest."""
    generate(tmp_path / "log", degree, 10_000)
    found = np.corrcoef(signals(tmp_path / "log").T)
    group = np.repeat(np.arange(GROUPS), TASKS_PER_GROUP)
    same = group[:, None] == group
    within, across = found[same & ~np.eye(len(TASKS), dtype=bool)].mean(), found[~same].mean()
    assert within > 0.5
    assert across == pytest.approx((1 - degree) * 0.8, abs=0.12)


def test_generated_configuration_trains(tmp_path: Path) -> None:
    """Protects the generated settings: few rows would otherwise fail only for the user."""
    assert main(["logs", "synthetic", "--out", str(tmp_path / "log"), "--rows", "2000", "--conflict", "1"]) == 0
    config = load_config(tmp_path / "log" / "ranker.toml", ["evaluation.baselines=[]", "evaluation.bootstrap=0"])
    assert [task.name for task in config.tasks] == list(TASKS)
    assert [feature.name for feature in config.features] == [f"x{column}" for column in range(INPUTS)]
    selection = train(config, tmp_path / "run").load_selection()
    assert selection["converged"]
    assert selection["reading"] == config.model.reading
    assert len(selection["experts_used"]) <= config.model.gate.experts_budget


def test_first_day_moves_times_and_splits_only(tmp_path: Path) -> None:
    generate(tmp_path / "log", 1.0, 500, first_day=date(2027, 12, 27))
    times = pq.read_table(tmp_path / "log" / "log")["time"].to_pylist()
    assert (min(times).date(), max(times).date()) == (date(2027, 12, 27), date(2028, 1, 5))
    logs = load_config(tmp_path / "log" / "ranker.toml").logs
    assert (logs.validation_from, logs.test_from) == (datetime(2028, 1, 4), datetime(2028, 1, 5))


@pytest.mark.parametrize("wrong", ["-0.1", "1.1", "nan", "much"])
def test_conflict_outside_0_to_1_is_rejected(tmp_path: Path, wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["logs", "synthetic", "--out", str(tmp_path / "log"), f"--conflict={wrong}"])
    assert stopped.value.code == 2
    assert "is not a number from 0 to 1" in capsys.readouterr().err


class Bottoms(nn.Module):
    """One network per group of outputs, with ReLU layers, and a tower per output.

    Args:
        bottoms: number of bottoms, which divides the outputs evenly.
        width: width of each bottom.
    """

    def __init__(self, bottoms: int, width: int, units: int = 8) -> None:
        super().__init__()
        self.bottoms = StackedMLP(bottoms, INPUTS, [width])
        self.towers = StackedMLP(len(TASKS), width, [units])
        self.output = StackedLinear(len(TASKS), units, 1)
        self.flops = 2 * (bottoms * INPUTS * width + len(TASKS) * (width * units + units))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.bottoms(x)
        hidden = hidden.repeat_interleave(len(TASKS) // len(hidden), 0)
        return self.output(self.towers(hidden)).squeeze(-1).T


def validation_loss(model: Bottoms, x: Tensor, labels: Tensor, epochs: int = 3, batch: int = 256) -> float:
    """Train on nine tenths of the rows, and return the mean log loss on the others."""
    rows = len(x) * 9 // 10
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    steps = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=epochs * (rows // batch))
    for _ in range(epochs):
        for part in torch.randperm(rows).split(batch)[: rows // batch]:
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(x[part]), labels[part]).backward()
            optimizer.step()
            steps.step()
    with torch.no_grad():
        return float(F.binary_cross_entropy_with_logits(model(x[rows:]), labels[rows:]))


@pytest.mark.nightly(short="test_generated_configuration_trains")
def test_separate_bottoms_of_equal_cost_are_better_in_conflict_and_worse_without(tmp_path: Path) -> None:
    """Takes about 6 s: protects what the log is for, tasks that harm each other in a shared network."""
    differences = {}
    for degree in (0.0, 1.0):
        folder = tmp_path / str(degree)
        generate(folder, degree, 15_000)
        x, labels = (
            torch.from_numpy(columns(folder, names)).float()
            for names in ([f"x{column}" for column in range(INPUTS)], list(TASKS))
        )
        shared, separate = Bottoms(1, 60), Bottoms(GROUPS, 30)
        assert separate.flops < 1.01 * shared.flops
        differences[degree] = validation_loss(separate, x, labels) - validation_loss(shared, x, labels)
    assert differences[1.0] < -0.003
    assert differences[0.0] > 0.003
