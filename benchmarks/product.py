"""Train configurations of the product, and read what each run measured."""

from __future__ import annotations

import io
import json
import shutil
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pipelines.config.config import Config, load_config
from pipelines.console import print_status
from pipelines.jobs.train import train
from pipelines.runs.run import RunFolder


@dataclass(frozen=True)
class Outcome:
    """Measurements of a run.

    Attributes:
        evaluation: content of ``evaluation.json``; None if the test split is empty.
        selection: content of ``selection.json``.
        metrics: lines of ``metrics.jsonl``.
    """

    evaluation: dict[str, Any] | None
    selection: dict[str, Any]
    metrics: list[dict[str, Any]]

    @property
    def validation_loss(self) -> float:
        """Weighted sum of the tasks' validation losses at the best check, whose weights the run keeps."""
        return min(line["validation_total"] for line in self.metrics if line["best"])

    @classmethod
    def read(cls, run: RunFolder) -> Self:
        """Read the results of a finished run."""
        return cls(
            json.loads(run.evaluation.read_text()) if run.evaluation.exists() else None,
            run.load_selection(),
            [json.loads(line) for line in run.metrics.read_text().splitlines()],
        )


@contextmanager
def trained(config: Config, folder: Path) -> Iterator[RunFolder]:
    """Train in a folder without messages, and remove the folder at the end of the block."""
    shutil.rmtree(folder, ignore_errors=True)
    with redirect_stderr(io.StringIO()):
        run = train(config, folder)
    yield run
    shutil.rmtree(folder)


def measure(config: Config, folder: Path) -> Outcome:
    """Train in a folder, return what the run measured, and remove the folder."""
    with trained(config, folder) as run:
        return Outcome.read(run)


def tune(
    log: Path,
    settings: Sequence[str],
    trials: Sequence[Sequence[str]],
    seeds: Iterable[int],
    folder: Path,
    allowed: Callable[[Outcome], bool] = lambda _: True,
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the settings of the trial with the lowest mean validation loss, and all trials.

    Losses are compared with six digits, and the first of equal trials is taken. The test split is not read.

    Args:
        log: the ``ranker.toml`` of the log.
        settings: overrides of all trials.
        trials: overrides to try.
        seeds: training seeds that each trial is repeated with.
        folder: folder of the runs, which are removed.
        allowed: whether an outcome may be chosen. A trial with another outcome is chosen only if all trials have one.
    """
    seeds = list(seeds)
    records: list[dict[str, Any]] = []
    for trial in trials:
        configs = [load_config(log, [*settings, *trial, f"training.seed={seed}"]) for seed in seeds]
        outcomes = [measure(config.without_test_split(), folder) for config in configs]
        loss = round(statistics.mean(outcome.validation_loss for outcome in outcomes), 6)
        records.append({"settings": list(trial), "validation_loss": loss, "allowed": all(map(allowed, outcomes))})
        print_status(f"{format_overrides(trial)}: validation loss {loss}")
    return min(records, key=lambda record: (not record["allowed"], record["validation_loss"]))["settings"], records


def format_overrides(overrides: Sequence[str]) -> str:
    """Format overrides with the last part of each key, such as "trunk 0.001, gates 0.02"."""
    parts = (override.partition("=") for override in overrides)
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, _, value in parts)
