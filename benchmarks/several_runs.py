"""Gain of the mean of several runs and of distillation, on the test split.

Trains runs that differ in their seed, freezes the mean of each group of them, and distills as many models as there are
runs. Prints the mean metrics and the paired differences with 95 % intervals over the groups: the mean of a group, and
the average of the models that it taught, against the average of its runs. Finished runs in the work folder are used
again.

    python -m benchmarks.several_runs kr/ranker.toml --work WORK
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.counters.metrics import METRICS
from benchmarks.counters.runs import trained
from pipelines.config.config import Config, load_config
from pipelines.evaluation.paired import paired_interval, plus_minus
from pipelines.jobs.freeze import freeze_run
from pipelines.runs.run import RunFolder

FIRST_SEED = 100
"""Seed of the first distilled model, above those of the runs."""

Groups = Sequence[Sequence[RunFolder]]


def frozen_means(groups: Groups, work: Path) -> list[dict[str, Any]]:
    """Freeze the mean of each group; returns their evaluations."""
    evaluations = []
    for number, (first, *others) in enumerate(groups):
        folder = work / f"mean-{number}"
        if not folder.exists():
            freeze_run(first.path, folder, others=[run.path for run in others])
        evaluations.append(json.loads((folder / "evaluation.json").read_text()))
    return evaluations


def distilled(config: Config, groups: Groups, number: int, work: Path) -> RunFolder:
    """Train a model that has one of the groups as teachers, in turn."""
    teachers = tuple(run.path.absolute() for run in groups[number % len(groups)])
    training = config.training.model_copy(update={"teachers": teachers})
    taught = config.model_copy(update={"training": training})
    return trained(taught, work / f"student-{number}", FIRST_SEED + number)


def table(config: Config, runs: Groups, means: Sequence[dict[str, Any]], students: Sequence[RunFolder]) -> list[str]:
    """Return the table of metrics as lines of Markdown."""
    of_runs, size = [run.load_evaluation() for group in runs for run in group], len(runs[0])
    of_students = [run.load_evaluation() for run in students]
    lines = [
        "| task | metric | one run | mean | distilled | mean − one run | distilled − one run |",
        "|---|---|---|---|---|---|---|",
    ]
    for task in config.tasks:
        for metric in METRICS[task.kind]:
            single, mean, student = (
                [evaluation["tasks"][task.name][metric] for evaluation in part]
                for part in (of_runs, means, of_students)
            )
            of_groups = [statistics.mean(single[start : start + size]) for start in range(0, len(single), size)]
            taught = [statistics.mean(student[number :: len(runs)]) for number in range(len(runs))]
            cells = [f"{statistics.mean(values):.4f}" for values in (single, mean, student)]
            for ours, theirs in ((mean, of_groups), (taught, of_groups)):
                difference, half_width = paired_interval(ours, theirs)
                cells.append(f"{'+' if difference >= 0 else ''}{plus_minus(difference, half_width, 4)}")
            lines.append(f"| {task.name} | {metric} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Train, freeze, distill and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="ranker.toml")
    parser.add_argument("--work", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--groups", type=int, default=5, help="number of means")
    parser.add_argument("--size", type=int, default=3, help="runs of each mean")
    arguments = parser.parse_args()
    if arguments.groups < 2 or arguments.size < 2:
        parser.error("--groups and --size must be at least 2")
    config, work, size = load_config(arguments.config), arguments.work, arguments.size
    runs = [trained(config, work / f"run-{seed}", seed) for seed in range(arguments.groups * size)]
    groups = [runs[start : start + size] for start in range(0, len(runs), size)]
    students = [distilled(config, groups, number, work) for number in range(len(runs))]
    print("\n".join(table(config, groups, frozen_means(groups, work), students)))


if __name__ == "__main__":
    main()
