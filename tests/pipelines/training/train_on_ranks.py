"""Script of one rank: run several trainings, and check after each that all ranks have the same weights.

torchrun starts it once for many trainings, because starting takes longer than training.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist

from pipelines.config.config import load_config
from pipelines.jobs import train as train_job
from pipelines.training.checkpoint import dense_parameters
from pipelines.training.distributed import init_distributed
from pipelines.training.trainer import Trainer


def main() -> None:
    """Arguments: the ranker.toml, a folder for the runs, and the settings of each training, separated by spaces."""
    original_fit = Trainer.fit

    def fit_and_compare(trainer: Trainer) -> None:
        original_fit(trainer)
        for name, parameter in dense_parameters(trainer._objective):
            weights = parameter.detach().clone()
            dist.broadcast(weights, 0)
            assert torch.equal(weights, parameter), f"{name} differs on rank {dist.get_rank()}"
        if dist.get_rank() == 0:
            print("all ranks have the same weights")

    Trainer.fit = fit_and_compare  # type: ignore[method-assign]
    toml, folder, *trainings = sys.argv[1:]
    with init_distributed() as context:
        train_job.init_distributed = lambda: nullcontext(context)
        for number, settings in enumerate(trainings):
            train_job.train(load_config(Path(toml), settings.split()), Path(folder) / str(number))


main()
