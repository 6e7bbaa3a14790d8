"""What a rank does in a test: trains again and again, and says whether all ranks hold the same weights.

Started by torchrun; one start for many trainings, since it takes longer than they do.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist

from pipelines.config.config import load_config
from pipelines.jobs import train as training
from pipelines.training.checkpoint import dense_parameters
from pipelines.training.distributed import init_distributed
from pipelines.training.trainer import Trainer


def main() -> None:
    """Arguments: the ranker.toml, a folder for the runs, and for each training its settings, between spaces."""
    fit = Trainer.fit

    def watched(trainer: Trainer) -> None:
        fit(trainer)
        for name, parameter in dense_parameters(trainer._objective):
            first = parameter.detach().clone()
            dist.broadcast(first, 0)
            assert torch.equal(first, parameter), f"{name} differs on rank {dist.get_rank()}"
        if dist.get_rank() == 0:
            print("all ranks hold the same weights")

    Trainer.fit = watched  # type: ignore[method-assign]
    toml, folder, *trainings = sys.argv[1:]
    with init_distributed() as context:
        training.init_distributed = lambda: nullcontext(context)
        for number, settings in enumerate(trainings):
            training.train(load_config(Path(toml), settings.split()), Path(folder) / str(number))


main()
